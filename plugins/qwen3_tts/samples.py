"""Requests with which the conformance kit tries the recipes."""

from __future__ import annotations

from omni import ReferenceAudio, SpeechRequest
from omni.testing import SENTENCES, Samples
from omni.testing.samples import tone, wav

_GREEDY = {"temperature": 0.0}


def _refused(request: SpeechRequest, **fields: object) -> SpeechRequest:
    values = {name: getattr(request, name) for name in request.__struct_fields__}
    return SpeechRequest(**{**values, **fields})


def voices() -> Samples:
    """For models with voices of their own."""
    requests = tuple(SpeechRequest(text=text, language="en") for text in SENTENCES[:4])
    return Samples(requests=requests)


def descriptions() -> Samples:
    """For models that speak as they are told."""
    voice = "A calm woman with a low, clear voice."
    return Samples(requests=tuple(SpeechRequest(text=text, instructions=voice) for text in SENTENCES[:4]))


def clones() -> Samples:
    """For models that speak like a reference."""
    reference = ReferenceAudio(audio=wav(tone(1.0), 16000), text=SENTENCES[4])
    return Samples(requests=tuple(SpeechRequest(text=text, references=[reference]) for text in SENTENCES[:4]))
