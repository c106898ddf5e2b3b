"""Command-line options for ``pytest --pyargs omni.testing``. Loaded only then, see ``pytest_omni``."""

from __future__ import annotations

import pytest

from omni.errors import OmniError
from omni.plugins import Plugins


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("omni", "conformance of a recipe")
    group.addoption("--recipe", action="append", default=[], metavar="NAME", help="recipe to check; may be repeated")
    group.addoption("--weights", metavar="SOURCE", help="folder or Hub id, as for omni launch")
    group.addoption("--set", action="append", default=[], metavar="STAGE.FIELD=VALUE", help="as for omni launch")
    group.addoption("--request-timeout", type=float, default=120.0, metavar="S", help="seconds for one request")


def pytest_configure(config: pytest.Config) -> None:
    # A check that does not apply is shown with its reason.
    if "s" not in config.option.reportchars:
        config.option.reportchars += "s"
    names = config.getoption("--recipe")
    plugins = Plugins.load()
    if not names:
        raise pytest.UsageError(f"name a recipe with --recipe; installed are: {', '.join(sorted(plugins.recipes))}")
    try:
        for name in names:
            plugins.recipe(name)
    except OmniError as error:
        broken = [f"plugin {p.name!r} did not load:\n{p.error}" for p in plugins.plugins if p.error]
        raise pytest.UsageError("\n".join([error.message, *broken])) from None
