"""What the model writes, whole: repair of endless repetition, language and text. :mod:`qwen3_asr.deltas` does the same
as it is written."""

from __future__ import annotations

import re

from qwen3_asr.languages import normalise

TEXT_TAG = "<asr_text>"
RUN = 20
"""A character more often than this in a row is one character; a unit at least this often in a row is one unit."""
UNIT = 20
"""Characters of the longest such unit."""
SHORTEST = 2 * RUN
"""Units are looked for where at least this many characters follow."""

_RUNS = re.compile(rf"(.)\1{{{RUN},}}", re.DOTALL)
_UNITS = re.compile(rf"(?=.{{{SHORTEST}}})(.{{1,{UNIT}}}?)\1{{{RUN - 1},}}", re.DOTALL)


def repair(text: str) -> str:
    """Collapse what a model in a loop writes: first runs of one character, then units, from left to right and the
    shortest first."""
    return _UNITS.sub(r"\1", _RUNS.sub(r"\1", text))


def parse(raw: str | None, language: str | None = None) -> tuple[str, str]:
    """``(language, text)`` of everything that the model wrote; the language as the model names it, "" where it names
    none. A forced ``language`` (which is part of the prompt) means that all is text."""
    written = repair((raw or "").strip())
    if not written:
        return "", ""
    if language is not None:
        return language, written
    before, tag, text = written.partition(TEXT_TAG)
    return (language_in(before), text.strip()) if tag else ("", written)


def language_in(before: str) -> str:
    """The language in what comes before the tag of the text: in the first line that names one."""
    if "language none" in before.lower():
        return ""
    for line in before.splitlines():
        word, space, name = line.strip().partition(" ")
        if space and word.lower() == "language":
            return normalise(name)
    return ""
