"""Entry point of the conformance kit for pytest. It is imported by every pytest run in an environment that has omni, so
it imports nothing itself, and options come only when ``omni.testing`` is among the arguments."""

from typing import Any


def pytest_configure(config: Any) -> None:
    """Know the kit's one marker where pytest-xdist, whose it is, is not installed."""
    if not config.pluginmanager.hasplugin("xdist"):
        config.addinivalue_line("markers", "xdist_group(name): tests that one worker of pytest-xdist runs")


def pytest_load_initial_conftests(early_config: Any, args: list[str]) -> None:
    """Bring in the kit's options when its checks are to be run."""
    if any(arg.startswith("omni.testing") for arg in args):
        early_config.pluginmanager.import_plugin("omni.testing.plugin")
