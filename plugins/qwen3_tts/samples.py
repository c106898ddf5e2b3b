"""Requests with which the conformance kit tries the recipes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from omni import ReferenceAudio, SpeechRequest
from omni.testing import SENTENCES, Effect, Samples, tone, wav

_DESCRIPTION = "A calm woman with a low, clear voice."


def reference(pitch: float = 140.0, text: str = SENTENCES[4]) -> ReferenceAudio:
    """A made-up voice."""
    return ReferenceAudio(audio=wav(tone(1.0, pitch, 24_000), 24_000), text=text)


def voices() -> Samples:
    """For models with voices of their own."""
    return Samples(tuple(SpeechRequest(text=text, language="en") for text in SENTENCES[:4]))


def descriptions() -> Samples:
    """For models that speak as they are told."""
    return Samples(tuple(SpeechRequest(text=text, instructions=_DESCRIPTION) for text in SENTENCES[:4]))


def clones() -> Samples:
    """For models that speak like a reference, with and without its text."""
    references = (reference(), reference(text=""), reference(260.0), reference(260.0, text=""))
    return Samples(
        requests=tuple(
            SpeechRequest(text=text, references=[voice]) for text, voice in zip(SENTENCES, references, strict=False)
        ),
        refused=(SpeechRequest(text=SENTENCES[0]),),
    )


FRAMES = 6
"""Random weights never end a sentence by themselves, and a CPU has to keep up."""


def _brief(samples: Samples, **params: Any) -> Samples:
    """For random weights: with one limit for each sentence, long texts last as long as their sentences."""
    limits = {"max_new_tokens": FRAMES, **params}

    def shorter(request: SpeechRequest, **more: Any) -> SpeechRequest:
        fields = {name: getattr(request, name) for name in request.__struct_fields__}
        return SpeechRequest(**{**fields, "params": {**limits, **more}})

    requests = [request for request in samples.requests if isinstance(request, SpeechRequest)]
    first, *_ = requests
    effects = {
        "max_new_tokens": Effect((1, FRAMES + 3)),
        "top_k": Effect((0, 1, 4096)),
        "subtalker_top_k": Effect((0, 1, 4096)),
        # It shows once a code comes again, which few candidates do soon.
        "repetition_penalty": Effect((0.5, 2.0), shorter(first, max_new_tokens=16, top_k=3)),
    }
    if "chunk_length" in params:
        fields = {name: getattr(first, name) for name in first.__struct_fields__}
        both = SpeechRequest(**{**fields, "text": " ".join(SENTENCES[:2])})
        effects["chunk_length"] = Effect((params["chunk_length"], 1000), shorter(both))
    return Samples(tuple(shorter(request) for request in requests), refused=samples.refused, effects=effects)


def brief_voices() -> Samples:
    return _brief(voices(), chunk_length=100)


def brief_clones() -> Samples:
    """Few frames are few words where a token goes with each of them; the first request, whose words count, differs."""
    samples = _brief(clones(), chunk_length=100)
    first, *others = samples.requests
    assert isinstance(first, SpeechRequest)
    first.params["non_streaming_mode"] = True
    return replace(samples, requests=(first, *others))


def brief_descriptions() -> Samples:
    """A described voice speaks any text in one go, so here a long one is not longer than a short one."""
    return replace(_brief(descriptions()), keeps=0.0)
