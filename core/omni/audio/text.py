"""Text for a voice: cleaning, and splitting where a speaker would pause."""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right

from omni.errors import BadRequest

_MAX_MARKS = 30
_ZWNJ, _ZWJ, _EMOJI_STYLE = "\u200c", "\u200d", "\ufe0f"

# Format characters (Cf) that are seen and read: Arabic number and verse signs and their relatives
# (Unicode's Prepended_Concatenation_Mark).
_VISIBLE_FORMAT = set("\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u0890\u0891\u08e2\U000110bd\U000110cd")

# Scripts whose letters take another shape next to a joiner: Arabic and its relatives, the scripts of India
# and South-East Asia, Mongolian.
_JOINING_SCRIPTS = (
    *((0x0600, 0x0DFF), (0x1000, 0x109F), (0x1780, 0x18AF), (0x1A00, 0x1BFF)),
    *((0xA800, 0xABFF), (0xFB50, 0xFEFE), (0x10A00, 0x11FFF)),
)

# Possessive and anchored at the start of a run: linear time whatever the text.
_CLOSERS = "[\"'”’»›)\\]}）」』】》〉〗〕］｝]*+"
# Stops that end a sentence whatever follows: CJK, danda, Arabic, Urdu, Ethiopic, Khmer, Burmese, Armenian.
_ENDS = re.compile(f"[。！？｡।॥؟۔።፧។៕။։]+[!?.…！？。]*{_CLOSERS}")
# Stops that end a sentence only if a space follows and what stands around agrees.
_MAYBE_ENDS = re.compile(f"(?<![.!?…‽])([.!?…‽]++){_CLOSERS}(?=\\s)")
_CLAUSE = re.compile(f"(?:[,;:–](?=\\s|[\"'”’»)])|[、，；：،؛—]){_CLOSERS}")
_SPACES = re.compile(r"\s+")
_NEXT_CHAR = re.compile(r"\s*+[\"'“‘«‹(\[¿¡]*+(.?)", re.DOTALL)
_WORD_BEFORE = re.compile(r"[\w.]*\Z")
_INITIALS = re.compile(r"(?:\w\.)*\w")

# Abbreviations that a name or the rest of the sentence follows, and those that a number follows.
# fmt: off
_BEFORE_NAME = {
    "dr", "mr", "mrs", "ms", "mx", "prof", "st", "sr", "sra", "srta", "mme", "mlle", "rev", "hon", "gen",
    "col", "sgt", "capt", "lt", "cmdr", "gov", "sen", "messrs", "vs", "ca", "cf", "approx", "dept", "univ",
    "bzw", "hr", "fr", "evtl", "ggf", "inkl", "zzgl", "geb", "sog", "ud", "uds", "incl", "resp",
}
_BEFORE_NUMBER = {
    "no", "nos", "nr", "núm", "fig", "figs", "eq", "vol", "vols", "ch", "chap", "sec", "pp", "pg", "pág",
    "art", "abs", "bd", "tel", "ext", "jan", "feb", "mar", "apr", "jun", "jul", "aug", "sep", "sept",
    "oct", "okt", "nov", "dec", "dez",
}
# fmt: on


def normalize_text(text: str, *, param: str = "input") -> str:
    """``text`` in NFC without what cannot be seen or spoken.

    Line ends become ``\\n``. Control characters (but ``\\n`` and ``\\t``) and format characters are removed:
    byte order mark, zero-width space, bidirectional controls, soft hyphen. The joiners U+200C and U+200D
    stay where they join: in emoji and next to letters of scripts that change shape. Everything else stays.

    Raises:
        BadRequest: a lone surrogate, which is half a character; more combining marks on one character than any
            script has (30, as in UAX #15), which would take quadratic time to put in order.
    """
    if text.isascii() and text.isprintable():
        return text
    text = re.sub("\r\n?|[\v\f\x1c-\x1e\x85]", "\n", text)
    kept: list[str] = []
    marks = 0
    for index, char in enumerate(text):
        category = unicodedata.category(char)
        if category == "Cs":
            raise BadRequest(f"character {index + 1} of the text is half of a surrogate pair", param=param)
        if category == "Cf" and char not in _VISIBLE_FORMAT:
            following = text[index + 1 : index + 2]
            if char not in (_ZWNJ, _ZWJ) or not _joins(kept[-1] if kept else "", char, following):
                continue
        elif category == "Cc" and char not in "\n\t":
            continue
        marks = marks + 1 if unicodedata.combining(char) else 0
        if marks > _MAX_MARKS:
            raise BadRequest(f"character {index + 1} of the text is one of too many combining marks", param=param)
        kept.append(char)
    return unicodedata.normalize("NFC", "".join(kept))


def _joins(before: str, joiner: str, after: str) -> bool:
    if joiner == _ZWJ and _is_emoji(before) and _is_emoji(after):
        return True
    # A joiner of two letters; ZWJ also shapes the last letter of a word (Malayalam chillus).
    return _changes_shape(before) and (joiner == _ZWJ or _changes_shape(after))


def _is_emoji(char: str) -> bool:
    return bool(char) and (char == _EMOJI_STYLE or unicodedata.category(char) in ("So", "Sk"))


def _changes_shape(char: str) -> bool:
    return (
        bool(char)
        and any(low <= ord(char) <= high for low, high in _JOINING_SCRIPTS)
        and unicodedata.category(char)[0] in "LM"
    )


def has_speakable(text: str) -> bool:
    """True if there is a letter or a number in any script."""
    return any(unicodedata.category(char)[0] in "LN" for char in text)


def split_text(text: str, max_chars: int, first_max_chars: int | None = None) -> list[str]:
    """Pieces of up to ``max_chars`` characters that end where a speaker would pause.

    A piece ends at the last end of a sentence that fits; without one at the last clause mark or line end;
    without one at the last space; without one anywhere, but not inside a character that is written with
    several code points (unless it alone is longer). ``first_max_chars`` keeps the first piece shorter, so
    that its sound is there sooner.

    Only white space is dropped, at the joints and at both ends: all other characters are in the pieces, in
    their order. A piece may have nothing to speak (see :func:`has_speakable`) where the text has a long run
    of marks. White space alone gives no piece.

    Raises:
        ValueError: a limit below 1.
    """
    limit = max_chars if first_max_chars is None else first_max_chars
    if min(limit, max_chars) < 1:
        raise ValueError("pieces have at least one character")
    text = text.strip()
    ranks = _ends(text)
    pieces: list[str] = []
    start = 0
    while start < len(text):
        end = len(text)
        if end - start > limit:
            end = _best_end(text, start, start + limit, ranks)
        pieces.append(text[start:end].rstrip())
        spaces = _SPACES.match(text, end)
        start = spaces.end() if spaces else end
        limit = max_chars
    return pieces


def _ends(text: str) -> tuple[list[int], ...]:
    """Ascending positions at which a piece may end: after sentences, after clauses, before spaces."""
    sentences = {match.end() for match in _ENDS.finditer(text)}
    sentences.update(match.end() for match in _MAYBE_ENDS.finditer(text) if _ends_sentence(text, match))
    clauses = {match.end() for match in _CLAUSE.finditer(text)}
    spaces = list(_SPACES.finditer(text))
    for run in spaces:
        lines = run[0].count("\n")
        if lines:
            (sentences if lines > 1 else clauses).add(run.start())
    return sorted(sentences), sorted(clauses), [run.start() for run in spaces]


def _best_end(text: str, start: int, limit: int, ranks: tuple[list[int], ...]) -> int:
    for ends in ranks:
        index = bisect_right(ends, limit) - 1
        if index >= 0 and ends[index] > start:
            return ends[index]
    end = limit
    while end > start and _inside_character(text, start, end):
        end -= 1
    return end if end > start else limit


def _ends_sentence(text: str, match: re.Match[str]) -> bool:
    after = _NEXT_CHAR.match(text, match.end())
    following = after[1] if after else ""
    if following.islower():
        return False
    if match[1] != ".":
        return True
    before = _WORD_BEFORE.search(text, max(0, match.start() - 20), match.start())
    word = before[0].strip(".").casefold() if before else ""
    if word.isdigit():
        # "3. Oktober", "1. Preheat the oven": an ordinal or the number of a list item.
        return len(word) > 2
    if word in _BEFORE_NAME or (word in _BEFORE_NUMBER and following.isdigit()):
        return False
    # "J. R. R. Tolkien", "U.S. Army", "z.B. Obst".
    return not _INITIALS.fullmatch(word)


def _inside_character(text: str, start: int, at: int) -> bool:
    """True if a cut before ``text[at]`` tears a character: marks, joiners, conjuncts, Jamo, flags."""
    before, char = text[at - 1], text[at]
    virama = 9  # canonical combining class
    if (
        unicodedata.combining(before) == virama
        or unicodedata.category(char)[0] == "M"
        or char in (_ZWJ, _ZWNJ)
        or before == _ZWJ
    ):
        return True
    if "\U0001f3fb" <= char <= "\U0001f3ff" or "\u1160" <= char <= "\u11ff":
        return True
    flags = 0
    while at - flags > start and "\U0001f1e6" <= text[at - flags - 1] <= "\U0001f1ff":
        flags += 1
    return "\U0001f1e6" <= char <= "\U0001f1ff" and flags % 2 == 1
