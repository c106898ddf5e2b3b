"""What travels between the stages of a recipe. A file becomes :class:`Span`\\ s, each of which is heard on its own."""

from __future__ import annotations

import msgspec
import numpy as np
import torch

from omni import Message, Usage


class SpanInfo(Message):
    """A stretch of the file, ``start`` and ``seconds`` of it in seconds, and what is asked about it; spans follow each
    other without gaps.

    ``language``: ISO code, None for detection. ``prompt``: context before the
    audio. ``max_new_tokens``: None for as many as the span can hold. ``timed``: times were asked for, and ``words``:
    those of words. ``written``, ``rollback``, ``finishing``: of a turn of a live transcript
    (:class:`qwen3_asr.params.LiveParams`), of which all that is written comes out as it is.
    """

    position: int
    last: bool
    start: float
    seconds: float
    language: str | None = None
    prompt: str = ""
    temperature: float = 0.0
    seed: int | None = None
    max_new_tokens: int | None = None
    timed: bool = False
    words: bool = False
    written: str | None = None
    rollback: int = 0
    finishing: bool = False


class Span(SpanInfo, kw_only=True):
    """With its sound, 50 kB a second. ``mel``: float32 ``(bands, frames)``."""

    mel: np.ndarray

    def info(self) -> SpanInfo:
        """Without it, for those who do not listen."""
        return SpanInfo(**{name: getattr(self, name) for name in SpanInfo.__struct_fields__})


class Mel(Message):
    """The part of a :class:`Span` that its embeddings depend on."""

    mel: np.ndarray


class Encoded(Message):
    """``embeds`` floating ``(positions, width)``: what the language model gets of a span's sound."""

    embeds: torch.Tensor


class Ending(msgspec.Struct, frozen=True):
    """Of a span that is written to its end: where it is in the file, and its ``text`` once more as a whole. ``cut``: a
    limit ended it."""

    last: bool
    start: float
    seconds: float
    text: str
    timed: bool = False
    words: bool = False
    cut: bool = False


class Piece(Message):
    """Something about the span at ``position``."""

    position: int


class Spoken(Piece):
    """More ``text`` of a span, in ``language`` (ISO code, None: unknown); with ``ending`` the last of it."""

    text: str = ""
    language: str | None = None
    ending: Ending | None = None
    usage: Usage | None = None


class Unit(msgspec.Struct, frozen=True):
    """A word: characters ``begin`` to ``end`` of the span's text, and ``word``, what of them the aligner gets: letters
    and numbers. ``start`` and ``stop`` in seconds from the start of the span."""

    word: str
    begin: int
    end: int
    start: float = 0.0
    stop: float = 0.0


class Aligned(Piece):
    """The times of a span; ``asked`` False: nobody wanted any."""

    units: list[Unit]
    ending: Ending
    asked: bool = True
