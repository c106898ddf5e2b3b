"""What travels between the stages of a recipe.

A request becomes several :class:`Part`s: a reference voice if there is one, then each piece of the text. The reference
is a part of its own so that core's cache, which keeps results by the content of an item, knows a voice again whatever
is said with it.
"""

from __future__ import annotations

import msgspec
import numpy as np

from omni import Message, Usage


class Sampling(msgspec.Struct, frozen=True):
    """How codes are drawn; ``subtalker_*`` is for all codebooks but the first."""

    temperature: float
    top_k: int
    top_p: float
    repetition_penalty: float
    subtalker_temperature: float
    subtalker_top_k: int
    subtalker_top_p: float


class Piece(Message):
    """A piece of text to be spoken in one go. ``speaker``, ``language``: as the checkpoint's configuration names them,
    None for neither and for detection. ``cloned``: the voice is that of the request's reference, in which
    ``reference_text`` is said (empty: not known). ``whole``: the text is read before the first frame."""

    text: str
    sampling: Sampling
    whole: bool
    speaker: str | None = None
    language: str | None = None
    instructions: str | None = None
    cloned: bool = False
    reference_text: str = ""
    max_new_tokens: int | None = None
    seed: int | None = None


class Voice(Message):
    """A reference encoded: ``vector`` float32 ``(hidden_size,)``; ``codes`` int32 ``(codebooks, frames)``, without
    frames where nothing is to be spoken after them."""

    vector: np.ndarray
    codes: np.ndarray


class Part(Message):
    """A piece of a request on its way to the prompt; one of ``audio``, ``voice`` and ``piece`` is set.

    ``audio``: a reference, float32 ``(samples,)`` mono at 24 kHz; ``with_codes``: its codes are needed.
    """

    audio: np.ndarray | None = None
    with_codes: bool = False
    voice: Voice | None = None
    piece: Piece | None = None


class Ready(Message):
    """A piece with the voice that it is to be spoken in, None where that is not a cloned one."""

    piece: Piece
    voice: Voice | None = None


class CodeFrames(Message):
    """Generated frames: ``codes`` integers ``(codebooks, frames)``. ``after``: the frames are the first of a piece,
    which begins after these silent ones (may be none). The last ones of a piece may be no frames and carry ``usage``
    and ``finish_reason``."""

    codes: np.ndarray
    after: np.ndarray | None = None
    usage: Usage | None = None
    finish_reason: str | None = None
