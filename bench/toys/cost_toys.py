"""Recipes that do nothing but pass chunks on: all that remains is what the framework costs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from omni import (
    AudioChunk,
    DecodeJob,
    Decoder,
    Limits,
    Message,
    Preprocess,
    Recipe,
    Speech,
    SpeechRequest,
    StageSpec,
)

CHUNKS, SAMPLES, RATE = 20, 2048, 24000
SOUND = np.zeros(SAMPLES, np.float32)


class Frame(Message):
    number: int


class Chunks(Preprocess[SpeechRequest, AudioChunk]):
    """The one stage."""

    def process(self, item: SpeechRequest) -> Iterator[AudioChunk]:
        for _ in range(CHUNKS):
            yield AudioChunk(samples=SOUND, sample_rate=RATE)


class Text(Preprocess[SpeechRequest, SpeechRequest]):
    def process(self, item: SpeechRequest) -> SpeechRequest:
        return item


class Frames(Preprocess[SpeechRequest, Frame]):
    def process(self, item: SpeechRequest) -> Iterator[Frame]:
        for number in range(CHUNKS):
            yield Frame(number=number)


class Vocoder(Decoder[Frame, AudioChunk]):
    def decode(self, batch: Sequence[DecodeJob]) -> Sequence[Sequence[AudioChunk]]:
        return [[AudioChunk(samples=SOUND, sample_rate=RATE) for _ in job.items] for job in batch]


def recipe(stages: int) -> Recipe:
    """A recipe of one stage, or of three: text, frames one by one, sound."""
    graph = (
        (StageSpec("chunks", "cost_toys:Chunks", stream=True),)
        if stages == 1
        else (
            StageSpec("text", "cost_toys:Text"),
            StageSpec("frames", "cost_toys:Frames", after="text", stream=True),
            StageSpec("vocoder", "cost_toys:Vocoder", after="frames", stream=True),
        )
    )
    return Recipe(
        name=f"cost-{stages}",
        summary="Chunks of silence",
        license="Apache-2.0",
        task=Speech(sample_rate=RATE),
        stages=graph,
        limits=Limits(max_requests=1024),
    )
