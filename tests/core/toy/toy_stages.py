"""Stages for tests of the pipeline. A request's text says what happens: ``N x WORD`` gives N chunks; the numbers in the
chunks tell which request and which place they belong to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from harness import Gate

from omni import (
    Aggregator,
    AudioChunk,
    BadRequest,
    DecodeJob,
    Decoder,
    Encoder,
    Joined,
    Message,
    Preprocess,
    Recipe,
    Speech,
    SpeechRequest,
    StageSpec,
    hookimpl,
)

GATE = Gate()
GATE.open()
"""Passed by every item of a request whose text holds ``gate``; open unless a test shuts it."""

EVENTS: list[tuple[str, Any]] = []
"""What happened to stages: loaded, closed, produced, discarded."""


class Word(Message):
    array: np.ndarray
    place: int
    text: str
    count: int


class Parts(Message):
    one: Word
    two: Word


def plan(text: str) -> int:
    return int(text.split(" x ")[0])


def mark(word: Word) -> float:
    """What a word sounds like, so that another's can be told from it."""
    return float(sum(word.text.encode()) % 251) + word.place / 1000


def expected(text: str) -> list[float]:
    return [np.float32(sum(text.encode()) % 251 + i / 1000).item() for i in range(plan(text))]


class Recorded:
    def load(self) -> None:
        EVENTS.append(("load", self.context.stage))  # type: ignore[attr-defined]

    def close(self) -> None:
        EVENTS.append(("close", self.context.stage))  # type: ignore[attr-defined]


class Nothing(Recorded, Preprocess[SpeechRequest, AudioChunk]):
    def process(self, item: SpeechRequest) -> Iterator[AudioChunk]:
        return iter(())


class Split(Recorded, Preprocess[SpeechRequest, Word]):
    def process(self, item: SpeechRequest) -> Iterator[Word]:
        text = item.text
        for place in range(plan(text)):
            if "gate" in text:
                GATE.passed()
            if "breaks" in text and place == 3:
                raise BadRequest("word 3 is forbidden", param="input")
            EVENTS.append(("produce", text))
            yield Word(array=np.full(4, place, np.int32), place=place, text=text, count=plan(text))


class Same(Recorded, Preprocess[Word, Word]):
    def process(self, item: Word) -> Word:
        return item


class Encode(Recorded, Encoder[Word, Word]):
    def encode(self, batch: Sequence[Word]) -> Sequence[Word]:
        return list(batch)


class Slow(Encode):
    """Holds everything up until the gate is open."""

    def encode(self, batch: Sequence[Word]) -> Sequence[Word]:
        GATE.passed()
        EVENTS.extend(("encoded", word.text) for word in batch)
        return list(batch)


class Half(Recorded, Preprocess[Word, Iterator[Word]]):  # type: ignore[type-var]
    """Every second item only."""

    input_type = Word
    output_type = Word

    def process(self, item: Word) -> Iterator[Word]:
        return iter([item] if item.place % 2 == 0 else [])


class Pair(Recorded, Preprocess[Joined, Word]):
    """Wants the same word from both of its sources."""

    def process(self, item: Joined) -> Word:
        words = [item.parts[name] for name in ("left", "right")]
        if words[0].place != words[1].place:
            raise AssertionError(f"{words[0].place} was joined to {words[1].place}")
        return words[0]


class Speak(Recorded, Decoder[Word, AudioChunk]):
    def open(self, first: Word) -> list[int]:
        return []

    def decode(self, batch: Sequence[DecodeJob]) -> Sequence[Sequence[AudioChunk]]:
        return [[sound(word) for word in job.items] for job in batch]

    def discard(self, state: list[int]) -> None:
        EVENTS.append(("discard", self.context.stage))


def sound(word: Word) -> AudioChunk:
    assert word.array.tolist() == [word.place] * 4
    return AudioChunk(samples=np.array([mark(word)], np.float32), sample_rate=8000)


class Join(Recorded, Aggregator[AudioChunk, AudioChunk, None]):
    """Everything as it is."""

    def open(self) -> None:
        return None

    def add(self, state: None, item: AudioChunk, source: str) -> Iterable[AudioChunk]:
        return [item]


class Sum(Recorded, Aggregator[Word, AudioChunk, dict[str, int]]):
    """One chunk at the end with the number of words by source."""

    def open(self) -> dict[str, int]:
        return {}

    def add(self, state: dict[str, int], item: Word, source: str) -> Iterable[AudioChunk]:
        state[source] = state.get(source, 0) + 1
        return ()

    def result(self, state: dict[str, int]) -> Iterable[AudioChunk]:
        counts = [state[name] for name in sorted(state)]
        return [AudioChunk(samples=np.array(counts, np.float32), sample_rate=8000)]


class Unloadable(Split):
    def load(self) -> None:
        raise self.error()

    @staticmethod
    def error() -> Exception:
        return RuntimeError("the disk is full")


class Unimportable(Unloadable):
    @staticmethod
    def error() -> Exception:
        return ModuleNotFoundError("No module named 'rarelib'", name="rarelib")


class Unmakeable(Split):
    def __init__(self, options: Any, context: Any) -> None:
        raise TypeError("cannot be made")


class NoMessages(Preprocess):  # type: ignore[type-arg]
    pass


class NoStage:
    pass


def stages(*names: str) -> tuple[StageSpec, ...]:
    """A chain: ``"split:Split"`` is stage ``split`` of class ``Split``, ``"b:Same<a"`` comes after ``a`` instead of the
    stage before, ``"p:Pair<a,b"`` after two. ``"split:Split>b"`` is paced by ``b``."""
    specs: list[StageSpec] = []
    for text in names:
        head, _, after = text.partition("<")
        name, _, cls = head.partition(":")
        cls, _, pace = cls.partition(">")
        sources = tuple(after.split(",")) if after else tuple(spec.name for spec in specs[-1:])
        specs.append(StageSpec(name, f"toy_stages:{cls}", after=sources, paced_by=pace or None))
    return tuple(specs)


def recipe(*names: str, **fields: Any) -> Recipe:
    values = {"name": "toy", "summary": "-", "license": "-", "task": Speech(sample_rate=8000), **fields}
    return Recipe(stages=stages(*names), **values)


CHAIN = ("split:Split", "encode:Encode", "speak:Speak", "join:Join")


@hookimpl
def omni_recipes() -> list[Recipe]:
    return [recipe(*CHAIN)]
