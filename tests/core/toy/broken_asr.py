"""Toy ears with one fault each. The comment of a class says what its author got wrong."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
from together import Together
from toy_asr import LETTER, RATE, Cut, Heard, Recognise, Window, Write

from omni import BadRequest, Message, TranscriptChunk, TranscriptionRequest, Word
from omni.audio import decode

# --- cutting


class FirstThirtySeconds(Cut):
    """One window of the model, and no more."""

    def read(self, request: TranscriptionRequest) -> np.ndarray:
        return super().read(request)[: 30 * RATE]


class UntilSilence(Cut):
    """It stops at the first long silence."""

    def spans(self, samples: np.ndarray) -> list[tuple[int, int]]:
        spans = super().spans(samples)
        gaps = [b[0] - a[1] for a, b in itertools.pairwise(spans)]
        return spans[: next((i + 1 for i, gap in enumerate(gaps) if gap > 5 * RATE), len(spans))]


class LosesOne(Cut):
    """The third window gets lost."""

    def spans(self, samples: np.ndarray) -> list[tuple[int, int]]:
        spans = super().spans(samples)
        return spans[:2] + spans[3:]


class CutsWords(Cut):
    """Windows of fixed length, through the middle of words."""

    def spans(self, samples: np.ndarray) -> list[tuple[int, int]]:
        size = 10 * LETTER
        return [(start, min(start + size, len(samples))) for start in range(0, len(samples), size)]


class Unlimited(Cut):
    """Nobody looks at max_seconds."""

    def read(self, request: TranscriptionRequest) -> np.ndarray:
        samples = decode(request.audio, RATE, param="file")
        return samples[: len(samples) // LETTER * LETTER]


class CutAtLimit(Unlimited):
    """What is over max_seconds is dropped silently."""

    def read(self, request: TranscriptionRequest) -> np.ndarray:
        limit = int(self.context.recipe.task.max_seconds * RATE) // LETTER * LETTER
        return super().read(request)[:limit]


class AnyFile(Cut):
    """What cannot be read counts as silence."""

    def read(self, request: TranscriptionRequest) -> np.ndarray:
        try:
            return super().read(request)
        except BadRequest:
            return np.zeros(0, np.float32)


class RawFile(Cut):
    """A file that cannot be read is the server's fault."""

    def read(self, request: TranscriptionRequest) -> np.ndarray:
        if bytes(request.audio[:4]) != b"RIFF" or len(request.audio) < 44:
            raise ValueError("unknown format")
        return super().read(request)


# --- recognition


class NoShift(Recognise):
    def encode(self, batch: Sequence[Window]) -> list[Heard]:
        return super().encode([msgspec.structs.replace(window, shift=0) for window in batch])


class KeyOfLength(Recognise):
    """Recordings of equal length are taken for the same."""

    def key(self, item: Window) -> Message:
        return msgspec.structs.replace(item, samples=np.zeros(len(item.samples), np.float32))


class Remembers(Recognise):
    """What it has heard before, also for somebody else, goes on in the next text."""

    Options = Together

    def load(self) -> None:
        self.last: list[Word] = []

    def encode(self, batch: Sequence[Window]) -> list[Heard]:
        results = super().encode(batch)
        for result in results:
            words, result.words = result.words, [*self.last, *result.words]
            self.last = words[-1:] if len(batch) > 1 else []
        return results


class Hallucinates(Recognise):
    """Silence says: thank you for watching."""

    def heard(self, window: Window) -> Heard:
        heard = super().heard(window)
        at = heard.words[-1].end if heard.words else window.start
        said = ["thank", "you", "for", "watching"] * 10 if at > 70 else []
        return msgspec.structs.replace(heard, words=heard.words + [Word(word, at, at) for word in said])


# --- writing


class FromWindow(Recognise):
    """Times count from the window's start."""

    def heard(self, window: Window) -> Heard:
        return super().heard(msgspec.structs.replace(window, start=0.0))


class WrongDuration(Write):
    def add(self, state: list[Heard], item: Heard, source: str) -> Iterable[TranscriptChunk]:
        for chunk in super().add(state, item, source):
            yield msgspec.structs.replace(chunk, duration=item.words[-1].end)


class Beyond(Write):
    """Times in another unit."""

    def add(self, state: list[Heard], item: Heard, source: str) -> Iterable[TranscriptChunk]:
        for chunk in super().add(state, item, source):
            segments = [msgspec.structs.replace(s, start=s.start * 50, end=s.end * 50) for s in chunk.segments]
            yield msgspec.structs.replace(chunk, segments=segments, duration=2.0)


class NoWords(Write):
    def add(self, state: list[Heard], item: Heard, source: str) -> Iterable[TranscriptChunk]:
        for chunk in super().add(state, item, source):
            segments = [msgspec.structs.replace(segment, words=[]) for segment in chunk.segments]
            yield msgspec.structs.replace(chunk, segments=segments)


class TextOnly(Write):
    def add(self, state: list[Heard], item: Heard, source: str) -> Iterable[TranscriptChunk]:
        for chunk in super().add(state, item, source):
            yield msgspec.structs.replace(chunk, segments=[])


class TwoTruths(Write):
    """The segments say something else than the text."""

    def add(self, state: list[Heard], item: Heard, source: str) -> Iterable[TranscriptChunk]:
        for chunk in super().add(state, item, source):
            yield msgspec.structs.replace(chunk, text=chunk.text.title().replace("The", "A"))


class CutsInSilence(Write):
    """Does not say that the text was cut."""

    def ending(self, reason: str) -> None:
        return None
