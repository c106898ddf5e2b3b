"""From what the aligner says to times that never run backwards, and to segments."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import msgspec
import numpy as np

from omni import Segment, Word
from qwen3_asr.messages import Unit

_SNAPPED = 2
"""Outliers in a row that take the time of a neighbour; more are spread between both."""
_PAUSE = 1.0
"""Seconds of silence after which a new segment begins."""
_ENDS = frozenset("!?。！？…")


def repair(stamps: Sequence[int]) -> list[int]:
    """Milliseconds that never fall: what is outside of the longest such sequence is replaced by its neighbours."""
    kept = _longest(np.asarray(stamps, np.int64))
    fixed = list(map(int, stamps))
    for left, right in pairwise([None, *kept, None]):
        _bridge(fixed, left, right)
    return fixed


def _longest(stamps: np.ndarray) -> list[int]:
    """Places of the longest sequence that never falls; of several the one that ends first, and so on from its end."""
    count = len(stamps)
    lengths = np.ones(count, np.int64)
    before = np.full(count, -1)
    for i in range(1, count):
        reachable = np.where(stamps[:i] <= stamps[i], lengths[:i], 0)
        best = int(reachable.argmax())
        if reachable[best]:
            lengths[i], before[i] = reachable[best] + 1, best
    places: list[int] = []
    at = int(lengths.argmax()) if count else -1
    while at >= 0:
        places.append(at)
        at = int(before[at])
    return places[::-1]


def _bridge(stamps: list[int], left: int | None, right: int | None) -> None:
    """Fill what lies between two places that are kept, or before the first and after the last one."""
    first = 0 if left is None else left + 1
    last = len(stamps) if right is None else right
    for place in range(first, last):
        if left is None or right is None:
            stamps[place] = stamps[right if right is not None else left or 0]
        elif last - first <= _SNAPPED:
            stamps[place] = stamps[left if place - left <= right - place else right]
        else:
            share = (place - left) / (right - left)
            stamps[place] = int(stamps[left] + share * (stamps[right] - stamps[left]))


def timed(units: Sequence[Unit], stamps: Sequence[int]) -> list[Unit]:
    """Units with their times; ``stamps`` has two for each, in milliseconds."""
    fixed = [round(stamp / 1000, 3) for stamp in repair(stamps)]
    return [msgspec.structs.replace(unit, start=fixed[2 * i], stop=fixed[2 * i + 1]) for i, unit in enumerate(units)]


def segments(text: str, units: Sequence[Unit], start: float, seconds: float) -> list[Segment]:
    """Sentences, cut also where nobody speaks for a second, with times in seconds of the file.

    The span of ``text`` is at ``start`` and ``seconds`` long; a time beyond its end, which the aligner may name, is its
    end. A text without words, of which nothing more is known, is one segment as long as the span.
    """
    end = math.floor((start + seconds) * 1000) / 1000

    def place(time: float) -> float:
        return min(round(start + time, 3), end)

    if not units:
        return [Segment(start=round(start, 3), end=end, text=text)] if text else []
    cuts = [i for i in range(1, len(units)) if _parts(text, units[i - 1], units[i])]
    found = []
    for first, last in pairwise([0, *cuts, len(units)]):
        own = units[first:last]
        begin = units[first].begin if first else 0
        stop = units[last].begin if last < len(units) else len(text)
        words = [Word(unit.word, place(unit.start), place(unit.stop)) for unit in own]
        found.append(Segment(start=words[0].start, end=words[-1].end, text=text[begin:stop].strip(), words=words))
    return found


def _parts(text: str, one: Unit, other: Unit) -> bool:
    """Whether a segment ends between two units."""
    between = text[one.end : other.begin]
    if other.start - one.stop >= _PAUSE or not _ENDS.isdisjoint(between):
        return True
    # A point also stands in abbreviations.
    return ". " in between and not text[other.begin].islower()
