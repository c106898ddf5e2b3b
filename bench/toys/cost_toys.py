"""Recipes that do nothing but pass chunks on: all that remains is what the framework costs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import numpy as np

from omni import (
    AudioChunk,
    DecodeJob,
    Decoder,
    Limits,
    Message,
    Preprocess,
    PreprocessOptions,
    Recipe,
    Speech,
    SpeechRequest,
    StageSpec,
)

CHUNKS, SAMPLES, RATE = 20, 2048, 24000
SOUND = np.zeros(SAMPLES, np.float32)
HOPS: list[float] = []
"""Seconds from one stage's hands into the next one's."""


class Frame(Message):
    number: int
    left: float


class Chunks(Preprocess[SpeechRequest, AudioChunk]):
    """The one stage."""

    def process(self, item: SpeechRequest) -> Iterator[AudioChunk]:
        for _ in range(CHUNKS):
            yield AudioChunk(samples=SOUND, sample_rate=RATE)


class Text(Preprocess[SpeechRequest, SpeechRequest]):
    def process(self, item: SpeechRequest) -> SpeechRequest:
        return item


class FramesOptions(PreprocessOptions):
    pause_ms: float = 0.0


class Frames(Preprocess[SpeechRequest, Frame]):
    """``pause_ms`` between two frames is the time that a model would take for one."""

    Options = FramesOptions

    def process(self, item: SpeechRequest) -> Iterator[Frame]:
        for number in range(CHUNKS):
            if self.options.pause_ms:
                time.sleep(self.options.pause_ms / 1000)
            yield Frame(number=number, left=time.perf_counter())


class Vocoder(Decoder[Frame, AudioChunk]):
    def decode(self, batch: Sequence[DecodeJob]) -> Sequence[Sequence[AudioChunk]]:
        now = time.perf_counter()
        HOPS.extend(now - item.left for job in batch for item in job.items)
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
