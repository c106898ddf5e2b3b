"""The conformance kit on SGLang, which the embedded engine passes in the plugin's own tests."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from omni.plugins import Plugins
from omni.testing import conformance

CKPT = Path(__file__).parents[1] / "data" / "fish_s2pro" / "ckpt"

plugins = Plugins.load([EntryPoint("fish_s2pro", "fish_s2pro", "omni"), EntryPoint("kept", "kept", "omni")])


@pytest.fixture(scope="module", autouse=True)
def closing() -> Iterator[None]:
    import kept

    yield
    while kept.running:
        kept.running.popitem()[1].close()


TestConformance = conformance(
    "fish-s2-pro",
    plugins=plugins,
    weights=str(CKPT),
    sets=["ar.engine=kept", "ar.kept.max_total_tokens=16384", "ar.kept.max_running_requests=16"],
)
