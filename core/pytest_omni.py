"""Entry point of the conformance kit for pytest. It is imported by every pytest run in an environment that has omni, so
it imports nothing itself and acts only when ``omni.testing`` is among the arguments."""

from typing import Any


def pytest_load_initial_conftests(early_config: Any, args: list[str]) -> None:
    """Bring in the kit's options when its checks are to be run."""
    if any(arg.startswith("omni.testing") for arg in args):
        early_config.pluginmanager.import_plugin("omni.testing.plugin")
