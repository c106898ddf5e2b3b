"""What the model is given to read: written symbols as words it can say, and a refusal of all the rest.

The front end of the model never fails: whatever it does not know it leaves out, or guesses. Every rule here
answers one such case, found by asking it for the phonemes of each character alone, before, after and between
words and numbers. A character is in exactly one of these groups:

* **read** by the front end itself: Latin letters of its alphabet, digits, ``% & @ + = / # ^ ° ± × ÷ ½ §`` ...;
* **silent** by convention: punctuation, quotes, brackets, list marks and markup (``* _ ` ~``), ``® ™``;
* **folded** to another form of the same sign: typographic quotes and hyphens, full-width and ligature forms,
  letters with accents that the alphabet lacks;
* **worded**: ``$ € ≤ √ \\ α`` and others that would be dropped or misread become words;
* **refused**: everything else, such as other scripts and emoji, in an error that quotes it and says where.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable

from omni import BadRequest

_DIGITS = frozenset("0123456789")
_READ = frozenset("%&@+=/#^°±×÷½¼¾²³¢£€$¥₹₩§¶©µ→")
_SILENT = frozenset(" \t\n\r.,!?;:'\"()[]{}-–—―…*_`|~“”¿¡®™•")

_FOLDED = {
    **dict.fromkeys("‘’‚‛ʼ´ʹ", "'"),
    **dict.fromkeys("„‟«»‹›", '"'),
    **dict.fromkeys("‐‑‒⁃﹣", "-"),
    **dict.fromkeys("‣◦▪●○■□·∙", "•"),
    **dict.fromkeys("⁄∕", "/"),
    "∗": "*",
    "⋅": "×",
    "‖": "|",
}

_WORDED = {
    "−": " minus ",
    "<": " less than ",
    ">": " greater than ",
    "≤": " less than or equal to ",
    "≥": " greater than or equal to ",
    "≠": " not equal to ",
    "≈": " approximately ",
    "√": " square root of ",
    "∞": " infinity ",
    "‰": " per mille ",
    "№": " number ",
    "\\": " backslash ",
}

_COMPATIBLE = ("<compat>", "<wide>", "<narrow>", "<small>", "<font>", "<circle>", "<square>", "<noBreak>", "<sub>")

_CURRENCY = {"$": "dollar", "£": "pound", "€": "euro", "¥": "yen", "₹": "rupee", "₩": "won", "¢": "cent"}
_HUNDREDTH = {"$": ("cent", "cents"), "£": ("penny", "pence"), "€": ("cent", "cents")}
_UNCOUNTED = {"yen", "won"}
_SCALES = {"k": "thousand", "m": "million", "b": "billion"}
# The front end loses the sign of money, and the unit if another number follows.
_MONEY = re.compile(
    r"(?<![\w,.:)])(-?)([$£€¥₹₩])[ \t]?(\d[\d,]*)?(?:\.(\d+))?(?<=\d)"
    r"(?:[ \t]?(hundred|thousand|million|billion|trillion|[kKmMbB])\b)?"
)
_MONEY_PREFIX = re.compile(r"(?<=[A-Za-z])(?=[$£€]\d)")
_MONEY_AFTER = re.compile(r"(?<![\d,.])(\d[\d,.]*)[ \t]?([$£€¥₹₩¢])(?!\d)")
_MONEY_SIGN = re.compile(r"[$£€¥₹₩¢]")

_LINK = re.compile(r"\](?=\()")
_POWER = re.compile(r"(?<=\d)[ \t]*\*\*[ \t]*(?=\d)")
_TIMES = re.compile(r"(?<=\d)[ \t]*[*•][ \t]*(?=\d)")
_ABOUT = re.compile(r"(?<!\w)~(?=[ \t]?\d)")
_ZEROS = re.compile(r"(?<![\w.,:/$£€¥₹₩-])0\d+(?!\w|[.,:/-]\d)")
_FRACTION = re.compile(r"(?<![\w.,:/$£€¥₹₩-])(\d+)\.(\d*0)(?!\w|[.,:/-]\d|[ \t]?[ap]\.?m\b)")
_NUMBER = re.compile(r"\d[\d,]{15,}")
# The counts are bounded, or a hostile text would take quadratic time.
_ADDRESS = re.compile(
    r"(?:https?|ftp)://\S+|www\.\S+|[^\s@]{1,64}@[\w-]{1,63}\.\S+"
    r"|\b(?:[\w-]{1,63}\.){1,6}(?:com|org|net|edu|gov|info|io|ai|co|uk|de|fr|eu|dev|app)\b(?:/\S*)?",
    re.IGNORECASE,
)
_ADDRESS_MARK = re.compile(r"[.:/?_~-](?=[\w/])")
_ADDRESS_WORDS = {
    ".": " dot ",
    ":": " colon ",
    "/": " slash ",
    "?": " question mark ",
    "_": " underscore ",
    "~": " tilde ",
    "-": " dash ",
}
_LETTERS = re.compile(r"[^\W\d_](?:['’]?[^\W\d_])*")
_RUN = re.compile(r"\S{33,}")
_RUN_BREAK = re.compile(r"\S{0,31}[^\w\s]|\S{1,32}")

_QUOTED = 5


class Reader:
    """Turns written text into what the front end can read in full.

    ``alphabet`` holds the Latin letters that the front end knows, ``longest`` is the length of the longest
    unknown word it reads (it cuts a longer one), ``known`` says whether its dictionary has a word.
    """

    def __init__(self, alphabet: Iterable[str], longest: int, known: Callable[[str], bool]) -> None:
        self._alphabet = frozenset(alphabet)
        self._longest = longest
        self._known = known

    def read(self, text: str) -> str:
        """``text`` in characters the front end reads.

        Raises:
            BadRequest: it holds characters that cannot be spoken, or nothing to speak.
        """
        pieces: list[str] = []
        refused: list[int] = []
        for index, char in enumerate(text):
            piece = self._character(text, index, char)
            if piece is None:
                refused.append(index)
            else:
                pieces.append(piece)
        if refused:
            raise BadRequest(_refusal(text, refused), param="input", code="unspeakable_text")
        read = self._contexts("".join(pieces))
        if not any(char.isalnum() or char in _READ for char in read):
            shown = text.strip()[:40]
            raise BadRequest(f"input has nothing to speak: {shown!r}", param="input", code="unspeakable_text")
        return read

    def _character(self, text: str, index: int, char: str) -> str | None:
        if char in _SILENT or char in _DIGITS or char in _READ or char in self._alphabet:
            return char
        for table in (_FOLDED, _WORDED):
            if char in table:
                return table[char]
        if char.isspace():
            return " "
        if "GREEK" in unicodedata.name(char, ""):
            return _greek(text, index, char)
        if unicodedata.category(char) == "Mn":
            return "" if index and unicodedata.name(text[index - 1], "").startswith("LATIN") else None
        return self._decomposed(char)

    def _decomposed(self, char: str) -> str | None:
        kind, _, _ = unicodedata.decomposition(char).partition(" ")
        if kind == "<fraction>":
            return f" {unicodedata.normalize('NFKC', char).replace('⁄', '/')} "
        if kind in _COMPATIBLE:
            parts = [self._character(part, 0, part) for part in unicodedata.normalize("NFKC", char)]
            return None if None in parts else "".join(part or "" for part in parts)
        if kind.startswith("<") or not unicodedata.name(char, "").startswith("LATIN"):
            return None
        base = unicodedata.normalize("NFD", char)[0]
        return base if base in self._alphabet else None

    def _contexts(self, text: str) -> str:
        text = _LINK.sub("] ", text)
        text = _ADDRESS.sub(_spell_address, text)
        text = _TIMES.sub(" times ", _POWER.sub(" to the power of ", text))
        text = _ABOUT.sub("about ", text)
        text = _MONEY.sub(_money, _MONEY_PREFIX.sub(" ", text))
        text = _MONEY_AFTER.sub(lambda m: f"{m[1]} {_counted(m[1], _CURRENCY[m[2]])} ", text)
        text = _MONEY_SIGN.sub(lambda m: f" {_CURRENCY[m[0]]} ", text)
        text = _ZEROS.sub(lambda m: " ".join(m[0]), text)
        text = _FRACTION.sub(lambda m: f"{m[1]} point {' '.join(m[2])}", text)
        text = _NUMBER.sub(lambda m: " ".join(m[0].replace(",", "")), text)
        text = _LETTERS.sub(self._cut_word, text)
        return _RUN.sub(lambda m: " ".join(_RUN_BREAK.findall(m[0])), text)

    def _cut_word(self, match: re.Match[str]) -> str:
        word = match[0]
        if len(word) <= self._longest or self._known(word):
            return word
        return " ".join(word[i : i + self._longest] for i in range(0, len(word), self._longest))


def _greek(text: str, index: int, char: str) -> str | None:
    """The name of a lone Greek letter (``α`` in ``α decay``); None inside a Greek word."""
    around = text[index - 1 : index] + text[index + 1 : index + 2]
    name = unicodedata.name(char).split()
    if any("GREEK" in unicodedata.name(c, "") for c in around) or name[1:3] not in _GREEK_CASES or len(name) != 4:
        return None
    if char == "μ" and text[index + 1 : index + 2].isalpha():
        return "µ"
    return f" {name[3].lower().replace('lamda', 'lambda')} "


_GREEK_CASES = (["SMALL", "LETTER"], ["CAPITAL", "LETTER"])


def _money(match: re.Match[str]) -> str:
    sign, symbol, whole, fraction, scale = match.groups()
    unit = _CURRENCY[symbol]
    # With a comma it is not read as a year.
    number = f"{int(whole.replace(',', '')[:15]):,}" if whole and len(whole) < 16 else whole or "0"
    if scale:
        amount = (
            f"{number}{f'.{fraction}' if fraction else ''} {_SCALES.get(scale.lower(), scale)} {_counted('', unit)}"
        )
    elif fraction and len(fraction) == 2 and symbol in _HUNDREDTH:
        parts = [] if number == "0" else [f"{number} {_counted(number, unit)}"]
        if fraction != "00":
            parts.append(f"{int(fraction)} {_HUNDREDTH[symbol][fraction != '01']}")
        amount = " and ".join(parts) or f"0 {_counted('', unit)}"
    elif fraction:
        amount = f"{number}.{fraction} {_counted('', unit)}"
    else:
        amount = f"{number} {_counted(number, unit)}"
    return f" {'minus ' if sign else ''}{amount} "


def _counted(number: str, unit: str) -> str:
    return unit if number == "1" or unit in _UNCOUNTED else unit + "s"


def _spell_address(match: re.Match[str]) -> str:
    return _ADDRESS_MARK.sub(lambda m: _ADDRESS_WORDS[m[0]], match[0])


def _refusal(text: str, refused: list[int]) -> str:
    runs: list[tuple[int, int]] = []
    for index in refused:
        if runs and runs[-1][1] == index:
            runs[-1] = (runs[-1][0], index + 1)
        else:
            runs.append((index, index + 1))
    quoted = ", ".join(f"{_quote(text[a:b])} at character {a + 1}" for a, b in runs[:_QUOTED])
    more = f" and {len(runs) - _QUOTED} more places" if len(runs) > _QUOTED else ""
    return f"input has characters that this English voice cannot speak: {quoted}{more}"


def _quote(run: str) -> str:
    shown = run if len(run) <= 20 else run[:20] + "…"
    return repr(shown) if shown.isprintable() else ascii(shown)
