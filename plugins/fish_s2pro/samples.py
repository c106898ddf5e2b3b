"""Texts with which the conformance kit tries the recipes."""

from __future__ import annotations

from omni import SpeechRequest
from omni.testing import SENTENCES, Samples


def samples() -> Samples:
    return Samples(requests=tuple(SpeechRequest(text=text) for text in SENTENCES[:4]))
