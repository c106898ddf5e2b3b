"""Recipes of every kind keep the promises that core makes in their name."""

from __future__ import annotations

import pytest
from qwen_data import folders

from omni.testing import conformance
from qwen3_tts.samples import brief_clones, brief_descriptions

# Requests are brief, since random weights do not end by themselves.
BASE = conformance("qwen3-tts-0.6b-base", weights=str(folders()["base"]), samples=brief_clones())
DESIGN = conformance("qwen3-tts-1.7b-voicedesign", weights=str(folders()["voice_design"]), samples=brief_descriptions())

TestBase = pytest.mark.slow(BASE)
TestVoiceDesign = pytest.mark.slow(DESIGN)
TestRandomVoices = pytest.mark.slow(conformance("qwen3-tts-random"))
