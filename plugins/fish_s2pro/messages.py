"""What travels between the stages of a recipe.

A request becomes several :class:`Part`s: one per reference voice, then one with the text. A reference is a part of its
own so that core's cache, which keeps results by the content of an item, knows a voice again whatever is said with it.
"""

from __future__ import annotations

import msgspec
import numpy as np

from omni import Message, Usage


class Prepared(Message):
    """The text side of a request. ``batches``: texts to be spoken one after the other, each with its predecessors as
    context; ``reference_texts``: what is said in each reference, in order."""

    batches: list[str]
    reference_texts: list[str] = msgspec.field(default_factory=list)
    temperature: float = 0.8
    top_p: float = 0.8
    top_k: int = 30
    seed: int | None = None
    max_new_tokens: int = 1024


class Part(Message):
    """A piece of a request on its way to the prompt; exactly one field is set.

    ``audio``: a reference voice, float32 ``(samples,)`` mono at the codec's rate. ``codes``: the same voice encoded,
    int32 ``(codebooks, frames)``. ``prepared``: the text, which comes last.
    """

    audio: np.ndarray | None = None
    codes: np.ndarray | None = None
    prepared: Prepared | None = None


class Encoded(Message):
    """A request whose references are encoded: ``codes[i]`` int32 ``(codebooks, frames)`` belongs to
    ``prepared.reference_texts[i]``."""

    prepared: Prepared
    codes: list[np.ndarray] = msgspec.field(default_factory=list)


class CodeFrames(Message):
    """Generated frames: ``codes`` integers ``(codebooks, frames)``; the last one of a request may have no frames and
    carries ``usage`` and ``finish_reason``."""

    codes: np.ndarray
    usage: Usage | None = None
    finish_reason: str | None = None
