"""Ears that understand beeps: one tone of 20 ms per letter, silence between words. A transcription recipe of all the
stages such a recipe needs, which keeps every promise.

file -> windows cut at silences (preprocess) -> words (encoder) -> transcript with absolute times (aggregator)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from omni import (
    Aggregator,
    Encoder,
    EncoderOptions,
    Message,
    Preprocess,
    Recipe,
    Segment,
    StageSpec,
    TranscriptChunk,
    Transcription,
    TranscriptionRequest,
    Word,
    hookimpl,
)
from omni.audio import decode
from omni.testing import Effect, Samples, wav

RATE = 8000
LETTER = 160
PAUSE = 50 * LETTER
"""So much silence ends a window."""
WINDOW = 250 * LETTER
"""No window is longer, as in a model with positions up to some number."""


class Params(BaseModel):
    model_config = ConfigDict(extra="forbid")

    shout: bool = False
    shift: Annotated[int, Field(ge=0, le=25)] = 0
    words: Annotated[int, Field(ge=1, le=1000)] = 1000


class Window(Message):
    start: float
    samples: np.ndarray
    shout: bool
    shift: int
    most: int


class Heard(Message):
    start: float
    words: list[Word]
    most: int


class Cut(Preprocess[TranscriptionRequest, Window]):
    def process(self, request: TranscriptionRequest) -> Iterator[Window]:
        samples = self.read(request)
        params = Params.model_validate(request.params)
        return (
            Window(
                start=start / RATE,
                samples=samples[start:end],
                shout=params.shout,
                shift=params.shift,
                most=params.words,
            )
            for start, end in self.spans(samples)
        )

    def read(self, request: TranscriptionRequest) -> np.ndarray:
        limit = self.context.recipe.task.max_seconds
        samples = decode(request.audio, RATE, max_seconds=limit, param="file")
        return samples[: len(samples) // LETTER * LETTER]

    def spans(self, samples: np.ndarray) -> list[tuple[int, int]]:
        """Stretches between long silences, at most WINDOW samples each, cut between words. At least one, so that
        silence has an empty transcript."""
        loud = np.abs(samples.reshape(-1, LETTER)).max(axis=1, initial=0) > 0.05
        edges = np.flatnonzero(np.diff(loud, prepend=False, append=False)) * LETTER
        spans: list[tuple[int, int]] = []
        for start, end in edges.reshape(-1, 2).tolist():  # word by word
            if spans and start - spans[-1][1] < PAUSE and end - spans[-1][0] <= WINDOW:
                spans[-1] = (spans[-1][0], end)
            else:
                spans.append((start, end))
        return spans or [(0, 0)]


class Recognise(Encoder[Window, Heard]):
    Options = EncoderOptions

    def encode(self, batch: Sequence[Window]) -> list[Heard]:
        return [self.heard(window) for window in batch]

    def heard(self, window: Window) -> Heard:
        letters = [letter(frame, window.shift) for frame in window.samples.reshape(-1, LETTER)]
        words: list[Word] = []
        for place, sign in enumerate(letters):
            at = window.start + place * LETTER / RATE
            if sign == " ":
                continue
            if place and letters[place - 1] != " ":
                last = words.pop()
                words.append(Word(last.word + self.case(sign, window), last.start, at + LETTER / RATE))
            else:
                words.append(Word(self.case(sign, window), at, at + LETTER / RATE))
        return Heard(start=window.start, words=words, most=window.most)

    def case(self, sign: str, window: Window) -> str:
        return sign.upper() if window.shout else sign


def letter(frame: np.ndarray, shift: int = 0) -> str:
    """What one tone says; bins of the spectrum are 50 Hz apart."""
    spectrum = np.abs(np.fft.rfft(frame))
    if spectrum.max(initial=0) < 1:
        return " "
    return chr(ord("a") + (int(spectrum.argmax()) - 8 + shift) % 26)


class Write(Aggregator[Heard, TranscriptChunk, list[Heard]]):
    def open(self) -> list[Heard]:
        return []

    def add(self, state: list[Heard], item: Heard, source: str) -> Iterable[TranscriptChunk]:
        words = item.words[: max(0, item.most - sum(len(heard.words) for heard in state))]
        finish = self.ending("length" if len(words) < len(item.words) else "stop")
        if not words:
            if item.words:
                yield TranscriptChunk(finish_reason=finish)
            return
        text = " ".join(word.word for word in words)
        segment = Segment(start=words[0].start, end=words[-1].end, text=text, words=words)
        yield TranscriptChunk(
            text=f" {text}" if state else text, segments=[segment], language="en", finish_reason=finish
        )
        state.append(item)

    def ending(self, reason: str) -> str | None:
        return reason


def beeps(text: str, silence: float = 0.4) -> np.ndarray:
    """A file that says ``text`` with ``silence`` seconds before and after; bytes (uint8) of a WAV."""
    time = np.arange(LETTER) / RATE
    quiet = np.zeros(round(silence * RATE), np.float32)
    tones = [
        np.zeros(LETTER) if sign == " " else 0.5 * np.sin(2 * np.pi * 50 * (ord(sign) - ord("a") + 8) * time)
        for sign in text
    ]
    return wav(np.concatenate([quiet, *tones, quiet]), RATE)


def samples() -> Samples:
    texts = ("the quick brown fox", "jumps over it", "while a lazy dog sleeps", "in front of the house")
    return Samples(
        tuple(TranscriptionRequest(audio=beeps(text)) for text in texts),
        effects={"words": Effect((1, 3, 1000))},
    )


def recipe(
    name: str = "toy-asr",
    *,
    cut: type = Cut,
    recognise: type = Recognise,
    write: type = Write,
    params: type = Params,
    task: Mapping[str, Any] | None = None,
    **fields: Any,
) -> Recipe:
    """The recipe, with any of its parts replaced."""
    declared: dict[str, Any] = {"languages": ("en",), "timestamps": ("segment", "word"), "params": path(params)}
    stages = (
        StageSpec("cut", path(cut), stream=True),
        StageSpec("recognise", path(recognise), after="cut"),
        StageSpec("write", path(write), after="recognise", stream=True),
    )
    values = {"summary": "Hears one letter per tone", "license": "Apache-2.0", "stages": stages, **fields}
    return Recipe(
        name=name, task=Transcription(**{**declared, **(task or {})}), **{"samples": "toy_asr:samples", **values}
    )


def path(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


@hookimpl
def omni_recipes() -> list[Recipe]:
    return [recipe()]
