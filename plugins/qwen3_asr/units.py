"""What the aligner gives times to: words, and single ideographs."""

from __future__ import annotations

import re
import threading
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any

from omni import BadRequest
from qwen3_asr.messages import Unit

_IDEOGRAPHS = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0xF900, 0xFAFF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF),
    (0x2F800, 0x2FA1F),
)
_KANA = ((0x3041, 0x3096), (0x30A1, 0x30FA), (0x30FC, 0x30FC), (0x31F0, 0x31FF))
JAPANESE_PIP = "pip install 'omni-recipes[qwen-ja]'"
_TAGGING = threading.Lock()
"""Nagisa builds one graph for the whole process."""
_VOICED = "\uff9e\uff9f"
"""Half-width marks that NFKC joins with the kana before them."""


def split_units(text: str, language: str | None) -> list[Unit]:
    """The units of ``text`` in ``language`` (ISO code), without times.

    Words between white space, of which letters, numbers and the apostrophe ' are given to the aligner; every ideograph
    is a unit of its own. Japanese falls into the words of nagisa where that is installed, else into characters.
    """
    if language != "ja":
        return list(_by_space(text))
    tagger = nagisa()
    if tagger is None:
        return list(_by_character(text))
    with _TAGGING:
        words = list(tagger.tagging(text).words)
    return _of_words(text, words)


def no_words() -> BadRequest:
    """The words of a Japanese text were asked for, and nobody here knows them."""
    return BadRequest(
        f"'timestamp_granularities': the words of Japanese need the package nagisa on the server ({JAPANESE_PIP}); "
        "'segment' does not",
        param="timestamp_granularities",
        code="missing_dependency",
    )


@cache
def nagisa() -> Any | None:
    """The package that knows Japanese words, None where it is not installed."""
    try:
        import nagisa as found
    except ImportError:
        return None
    return found


def _kept(character: str) -> bool:
    return character == "'" or unicodedata.category(character)[0] in "LN"


def _within(character: str, blocks: Iterable[tuple[int, int]]) -> bool:
    return any(first <= ord(character) <= last for first, last in blocks)


def _by_space(text: str, single: Iterable[tuple[int, int]] = _IDEOGRAPHS) -> Iterator[Unit]:
    """Words between white space; characters of the blocks ``single`` stand alone."""
    for found in re.finditer(r"\S+", text):
        word: list[int] = []  # places of its characters
        for place in range(found.start(), found.end()):
            if not _kept(text[place]):
                continue
            if _within(text[place], single):
                yield from _unit(text, word)
                word = []
                yield from _unit(text, [place])
            else:
                word.append(place)
        yield from _unit(text, word)


def _by_character(text: str) -> Iterator[Unit]:
    return _by_space(text, (*_IDEOGRAPHS, *_KANA))


def _unit(text: str, places: list[int]) -> Iterator[Unit]:
    if places:
        yield Unit("".join(text[place] for place in places), places[0], _with_marks(text, places[-1] + 1))


def _with_marks(text: str, end: int) -> int:
    """The end of what ends at ``end``, with the accents and vowel signs that belong to its last character."""
    while end < len(text) and unicodedata.category(text[end])[0] == "M":
        end += 1
    return end


def _of_words(text: str, words: Sequence[str]) -> list[Unit]:
    """Words that somebody else found, where they are in the text. He may have normalised it (NFKC); words that share a
    character of the text are one, and where his words are not the text's, its characters are the units."""
    places: dict[int, tuple[int, int]] = {}  # from a place in what was normalised to the ends before and after it
    normal, at = "", 0
    while at < len(text):
        end = _with_marks(text, at + 1)
        while end < len(text) and text[end] in _VOICED:
            end += 1
        made = _clean(text[at:end])
        if made:
            places[len(normal)] = (places.get(len(normal), (0, at))[0], at)
            normal += made
            places[len(normal)] = (end, end)
        at = end
    units: list[Unit] = []
    begun = done = 0
    for word in words:
        done += len(_clean(word))
        if done in places and done > begun:
            units.append(Unit(normal[begun:done], places[begun][1], places[done][0]))
            begun = done
    if begun != len(normal) or "".join(map(_clean, words)) != normal:
        return list(_by_character(text))
    return units


def _clean(text: str) -> str:
    return "".join(filter(_kept, unicodedata.normalize("NFKC", text)))
