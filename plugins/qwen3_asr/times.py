"""From what the aligner says to times that never run backwards, and to segments."""

from __future__ import annotations

import math
import unicodedata
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
_FULL_ENDS = frozenset("。！？｡")
"""What ends a sentence without a space after it."""
_ENDS = frozenset(".!?…؟।॥")
_QUOTES = frozenset("\"'")
_TITLES = frozenset(
    (
        *("Dr", "Dra", "Mr", "Mrs", "Ms", "Prof", "St", "Sr", "Sra", "Srta", "Jr", "Mme", "Mlle", "Hr", "Fr", "Nr"),
        *("Gen", "Col", "Lt", "Sgt", "Capt", "Rev", "Gov", "Sen", "Sig", "Dott", "Ing", "Mt", "vs", "ca", "bzw"),
    )
)
"""Words whose point ends no sentence, as they are written."""


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
    cuts = [(i, at) for i in range(1, len(units)) if (at := _cut(text, units[i - 1], units[i])) is not None]
    found = []
    for (first, begin), (last, stop) in pairwise([(0, 0), *cuts, (len(units), len(text))]):
        words = [Word(text[u.begin : u.end], place(u.start), place(u.stop)) for u in units[first:last]]
        found.append(Segment(start=words[0].start, end=words[-1].end, text=text[begin:stop].strip(), words=words))
    return found


def _cut(text: str, one: Unit, other: Unit) -> int | None:
    """Where the segment of ``other`` begins in the text: before what opens it. None: it goes on after ``one``."""
    at = other.begin
    while True:
        before = len(text[one.end : at].rstrip()) + one.end
        if before == one.end or not _opens(text, before - 1):
            break
        at = before - 1
    return at if other.start - one.stop >= _PAUSE or _ends(text, one, at, other.begin) else None


def _opens(text: str, place: int) -> bool:
    """Whether a character belongs to what follows: a bracket, an opening quotation mark, the dash of a speaker."""
    character = text[place]
    category = unicodedata.category(character)
    if category == "Ps" or character in "¿¡":
        return True
    # Languages open with marks that others close with, so where the white space is decides.
    space = [beside.isspace() or not beside for beside in (text[:place][-1:], text[place + 1 : place + 2])]
    if category == "Pd":
        return space[0]
    if category not in ("Pi", "Pf") and character not in _QUOTES:
        return False
    return space[0] if space[0] != space[1] else category == "Pi"


def _ends(text: str, one: Unit, at: int, following: int) -> bool:
    """Whether what stands between ``one`` and ``at``, where something else is opened, ends a sentence."""
    closed = text[one.end : at].rstrip()
    while closed and (unicodedata.category(closed[-1]) in ("Pe", "Pf", "Pi") or closed[-1] in _QUOTES):
        closed = closed[:-1].rstrip()
    last = closed[-1:]
    if last in _FULL_ENDS:
        return bool(last)
    glued = at == following and not text[at - 1].isspace()
    if last not in _ENDS or glued or text[following].islower():
        return False
    word = text[one.begin : one.end]
    # A point also stands in abbreviations, after initials and after ordinal numbers.
    return closed != "." or not (
        word in _TITLES or "." in word or (len(word) == 1 and word.isalpha()) or (len(word) < 3 and word.isdigit())
    )
