"""What the model writes, as it is written: pieces of text that never have to be taken back.

Joined, the pieces are the text that :func:`qwen3_asr.transcripts.parse` finds in the whole. So each is held back for
as long as what follows could still change it: white space until something comes after it, everything until the tag
before the text (where the language is not known), and all but the first unit of what may become a repetition.
"""

from __future__ import annotations

import re

from qwen3_asr.transcripts import RUN, TEXT_TAG, UNIT, language_in


class Runs:
    """Runs of more than ``run`` equal characters become one character."""

    def __init__(self, run: int = RUN) -> None:
        self._run = run
        self._last = ""
        self._count = 0

    def push(self, text: str) -> str:
        out: list[str] = []
        for character in text:
            if character == self._last:
                self._count += 1
            else:
                out += (self.finish(), character)
                self._last, self._count = character, 1
        return "".join(out)

    def finish(self) -> str:
        """The rest of the run that has just ended; its first character has left already."""
        rest = self._last * (self._count - 1) if self._count <= self._run else ""
        self._last, self._count = "", 0
        return rest


class Units:
    """Units of up to ``unit`` characters become one where they stand at least ``run`` times in a row and at least
    ``2 * run`` characters follow from there.

    ``_text`` is what is not decided, of which ``_given`` characters have left: whether a unit repeats or not, its first
    copy stays.
    """

    def __init__(self, run: int = RUN, unit: int = UNIT) -> None:
        self._run, self._unit, self._shortest = run, unit, 2 * run
        self._complete = re.compile(rf"(.{{1,{unit}}}?)\1{{{run - 1}}}", re.DOTALL)
        self._text = ""
        self._given = 0
        self._repeated = ""

    def push(self, text: str) -> str:
        self._text += text
        return self._advance(last=False)

    def finish(self) -> str:
        return self._advance(last=True)

    def _advance(self, *, last: bool) -> str:
        out: list[str] = []
        at = self._skip(0, last)
        limit = len(self._text)
        while at < len(self._text) and not self._repeated:
            decided, size = self._look(at, last)
            if not decided:
                limit = at + size
                break
            step = size or 1
            out.append(self._text[max(at, self._given) : at + step])
            if size:
                self._repeated = self._text[at : at + size]
            at = self._skip(at + step, last)
        self._text, self._given = self._text[at:], max(0, self._given - at)
        if self._text and not self._repeated:
            safe = min(limit - at, self._safe())
            out.append(self._text[self._given : safe])
            self._given = max(self._given, safe)
        return "".join(out)

    def _skip(self, at: int, last: bool) -> int:
        """Pass further copies of the unit that was found to repeat."""
        size = len(self._repeated)
        while self._repeated:
            following = self._text[at : at + size]
            if following == self._repeated:
                at += size
            elif not last and self._repeated.startswith(following):
                break  # it may go on
            else:
                self._repeated = ""
        return at

    def _look(self, at: int, last: bool) -> tuple[bool, int]:
        """Whether it is known what begins at ``at``, and the length of the unit that repeats there (0: none) or may."""
        text, rest = self._text, len(self._text) - at
        if last and rest < self._shortest:
            return True, 0
        again = at
        while (again := text.find(text[at], again + 1, at + self._unit + 1)) >= 0:
            size = again - at
            wanted, length = size * self._run, size + 1
            while length < min(wanted, rest) and text[at + length] == text[at + length - size]:
                length += 1
            if length >= wanted:
                return rest >= self._shortest, size
            if length >= rest and not last:
                return False, size
        return (True, 0) if last or rest > self._unit else (False, rest)

    def _safe(self) -> int:
        """How much of ``_text`` stays whatever comes: what is periodic up to the end may become a repetition, and one
        that is complete may turn out to be none, when an earlier one takes its beginning."""
        text = self._text
        end = len(text) - 1
        complete = self._complete.search(text)
        safe = len(text) if complete is None else complete.start() + 1
        same = end
        while (same := text.rfind(text[end], max(0, end - self._unit), same)) >= 0:
            size, start = end - same, same
            while start > 0 and text[start - 1] == text[start - 1 + size]:
                start -= 1
            safe = min(safe, start + size)
        return safe


class Stripped:
    """Without white space at both ends."""

    def __init__(self) -> None:
        self._begun = False
        self._space = ""

    def push(self, text: str) -> str:
        text = self._space + text if self._begun else text.lstrip()
        kept = text.rstrip()
        if kept:
            self._begun = True
        self._space = text[len(kept) :] if self._begun else ""
        return kept


class Raw:
    """All that the model writes, as it is, after what the answer ``begins`` with."""

    language: str | None = None

    def __init__(self, begins: str) -> None:
        self.text = ""
        self._begins = begins

    def push(self, written: str) -> str:
        made, self._begins = self._begins + written, ""
        self.text += made
        return made

    def finish(self) -> str:
        return self.push("")


class Deltas:
    """All of it. ``language``: as the model names it; "" where it names none; None as long as that is not known.
    ``text``: what has left so far."""

    def __init__(self, language: str | None = None) -> None:
        self.language = language
        self.text = ""
        self._outer, self._inner = Stripped(), Stripped()
        self._runs, self._units = Runs(), Units()
        self._before = ""

    def push(self, written: str) -> str:
        """More of what the model writes; the text that may leave now."""
        return self._leave(self._after_tag(self._units.push(self._runs.push(self._outer.push(written)))))

    def finish(self) -> str:
        """The model has ended; the text that is left."""
        text = self._after_tag(self._units.push(self._runs.finish()) + self._units.finish())
        if self.language is None:
            # There was no tag: all of it is text.
            self.language, text = "", self._before
        return self._leave(text)

    def _after_tag(self, text: str) -> str:
        if self.language is not None:
            return text
        self._before, tag, after = (self._before + text).partition(TEXT_TAG)
        if tag:
            self.language = language_in(self._before)
        return after

    def _leave(self, text: str) -> str:
        text = self._inner.push(text)
        self.text += text
        return text
