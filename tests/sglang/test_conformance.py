"""The conformance kit on SGLang, which the embedded engine passes in the plugin's own tests."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path

from omni.plugins import Plugins
from omni.testing import conformance

CKPT = Path(__file__).parents[1] / "data" / "fish_s2pro" / "ckpt"

plugins = Plugins.load([EntryPoint("fish_s2pro", "fish_s2pro", "omni"), EntryPoint("kept", "kept", "omni")])


TestConformance = conformance(
    "fish-s2-pro",
    plugins=plugins,
    weights=str(CKPT),
    sets=["ar.engine=kept", "ar.kept.max_total_tokens=16384", "ar.kept.max_running_requests=16"],
)
