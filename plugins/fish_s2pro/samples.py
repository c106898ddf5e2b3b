"""Texts with which the conformance kit tries the recipes."""

from __future__ import annotations

from omni import ReferenceAudio, SpeechRequest
from omni.testing import SENTENCES, Effect, Samples, tone, wav

FRAMES = 6
"""Random weights never end a sentence by themselves, and a CPU has to keep up."""


def say(text: str, *voices: float) -> SpeechRequest:
    """A sentence is a batch of its own: with one limit for each, long texts last as long as their sentences. ``voices``
    are the pitches of made-up references."""
    references = [
        ReferenceAudio(audio=wav(tone(0.5, pitch, 44_100), 44_100), text="Nothing was said.") for pitch in voices
    ]
    return SpeechRequest(text=text, references=references, params={"max_new_tokens": FRAMES, "chunk_length": 100})


def samples() -> Samples:
    return Samples(
        requests=(*(say(text) for text in SENTENCES[:3]), say(SENTENCES[3], 140.0, 260.0)),
        effects={
            "max_new_tokens": Effect((1, FRAMES + 3)),
            "top_k": Effect((0, 1, 4096)),
            "chunk_length": Effect((100, 1000), say(" ".join(SENTENCES[:2]))),
        },
    )
