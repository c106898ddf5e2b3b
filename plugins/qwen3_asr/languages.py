"""The model's names of languages and their ISO codes."""

from __future__ import annotations

from collections.abc import Iterable

from omni import BadRequest

NAMES = {
    "zh": "Chinese",
    "en": "English",
    "yue": "Cantonese",
    "ar": "Arabic",
    "de": "German",
    "fr": "French",
    "es": "Spanish",
    "pt": "Portuguese",
    "id": "Indonesian",
    "it": "Italian",
    "ko": "Korean",
    "ru": "Russian",
    "th": "Thai",
    "vi": "Vietnamese",
    "ja": "Japanese",
    "tr": "Turkish",
    "hi": "Hindi",
    "ms": "Malay",
    "nl": "Dutch",
    "sv": "Swedish",
    "da": "Danish",
    "fi": "Finnish",
    "pl": "Polish",
    "cs": "Czech",
    "fil": "Filipino",
    "fa": "Persian",
    "el": "Greek",
    "ro": "Romanian",
    "hu": "Hungarian",
    "mk": "Macedonian",
}
"""ISO 639-1; of Cantonese and Filipino, which have none, ISO 639-3 and 639-2."""

ALIGNED = ("zh", "en", "yue", "fr", "de", "it", "ja", "ko", "pt", "ru", "es")
"""Languages in which the forced aligner was trained to give times."""

_CODES = {name: code for code, name in NAMES.items()}

WITHOUT_SPACES = frozenset(("zh", "yue", "ja"))
"""Languages that put no space between sentences."""


def unknown_language(code: str) -> BadRequest:
    return BadRequest(
        f"the model does not know the language {code!r}; it knows: {', '.join(NAMES)}",
        param="language",
        code="unsupported_language",
    )


def no_times(code: str, *, heard: bool = False) -> BadRequest:
    """Times were asked for in a language outside of :data:`ALIGNED`. ``heard``: the model found it, nobody named it."""
    known = f"the aligner knows: {', '.join(ALIGNED)}"
    if heard:
        return BadRequest(
            f"'timestamp_granularities': {NAMES[code]} ({code!r}) was heard, whose words get no times; {known}",
            param="timestamp_granularities",
            code="unsupported_language",
        )
    return BadRequest(
        f"there are no times ('timestamp_granularities', srt, vtt) for the language {code!r} ({NAMES[code]}); {known}",
        param="language",
        code="unsupported_language",
    )


def normalise(name: str) -> str:
    """The model's way to write a name: ``English``."""
    name = name.strip()
    return name[:1].upper() + name[1:].lower()


def code_of(name: str) -> str | None:
    """The code for a name that the model wrote; of several in a row (``Chinese,English``) the first that is known."""
    return next((code for part in name.split(",") if (code := _CODES.get(normalise(part)))), None)


def merge(names: Iterable[str]) -> str:
    """The languages of consecutive stretches: without empty ones and repetitions, joined by commas."""
    kept: list[str] = []
    for name in names:
        if name and kept[-1:] != [name]:
            kept.append(name)
    return ",".join(kept)
