"""Recipes of every kind keep the promises that core makes in their name."""

from __future__ import annotations

import pytest
from qwen_data import folders

from omni.testing import conformance
from qwen3_tts.samples import brief_clones, brief_descriptions, brief_voices

# Requests are brief, since random weights do not end by themselves.
BASE = conformance("qwen3-tts-0.6b-base", weights=str(folders()["base"]), samples=brief_clones())
CUSTOM = conformance("qwen3-tts-0.6b-customvoice", weights=str(folders()["custom_voice"]), samples=brief_voices())
DESIGN = conformance("qwen3-tts-1.7b-voicedesign", weights=str(folders()["voice_design"]), samples=brief_descriptions())

TestBase = pytest.mark.slow(BASE)
TestCustomVoice = pytest.mark.slow(CUSTOM)
TestVoiceDesign = pytest.mark.slow(DESIGN)
