"""The checks as pytest tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from omni.plugins import Plugins
from omni.recipe import Recipe
from omni.testing.checks import CHECKS, Check
from omni.testing.kit import ConformanceFailure, Kit, NotApplicable
from omni.testing.samples import Samples


def run(check: Check, kit: Kit) -> None:
    """Run a check with pytest's own words for failing and skipping."""
    __tracebackhide__ = True
    try:
        check(kit)
        return
    except (NotApplicable, ConformanceFailure) as caught:
        outcome = caught
    # Outside of the handler, so that pytest shows the message alone.
    if isinstance(outcome, NotApplicable):
        pytest.skip(str(outcome))
    pytest.fail(f"{kit.recipe.name}: {outcome}\n(the check {check.name} proves that {check.proves})", pytrace=False)


def suite(
    recipe: str | Recipe,
    *,
    plugins: Plugins | None = None,
    sets: tuple[str, ...] = (),
    weights: str | None = None,
    samples: Samples | None = None,
    timeout: float = 120.0,
) -> type[Any]:
    """See :func:`omni.testing.conformance`."""

    name = recipe if isinstance(recipe, str) else recipe.name

    # One worker of pytest-xdist for all checks: they share a loaded pipeline and what it gave.
    @pytest.mark.xdist_group(f"conformance of {name}")
    class TestConformance:
        @pytest.fixture(scope="class")
        @classmethod
        def kit(cls) -> Iterator[Kit]:
            known = plugins or Plugins.load()
            found = known.recipe(recipe) if isinstance(recipe, str) else recipe
            with Kit(found, known, sets=sets, weights=weights, samples=samples, timeout=timeout) as kit:
                yield kit

        @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
        def test_conformance(self, kit: Kit, check: Check) -> None:
            run(check, kit)

    return TestConformance
