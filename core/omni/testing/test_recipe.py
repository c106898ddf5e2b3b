"""What ``pytest --pyargs omni.testing --recipe NAME`` collects."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from omni.plugins import Plugins
from omni.testing.checks import CHECKS, Check
from omni.testing.kit import Kit
from omni.testing.suite import run


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    metafunc.parametrize("kit", metafunc.config.getoption("--recipe"), indirect=True, scope="module")
    metafunc.parametrize("check", CHECKS, ids=lambda check: check.name)


@pytest.fixture(scope="module")
def kit(request: pytest.FixtureRequest) -> Iterator[Kit]:
    option = request.config.getoption
    plugins = Plugins.load()
    with Kit(
        plugins.recipe(request.param),
        plugins,
        sets=option("--set"),
        weights=option("--weights"),
        timeout=option("--request-timeout"),
    ) as kit:
        yield kit


def test_recipe(kit: Kit, check: Check) -> None:
    run(check, kit)
