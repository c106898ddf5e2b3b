"""Prompts: system message with references, turns packed into batches, earlier batches as context."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from fish_s2pro.tokenizer import FishTokenizer
from omni.audio import split_text
from omni.engines.base import Prompt
from omni.errors import BadRequest

_TAG = re.compile(r"<\|speaker:\d+\|>")
_SENTENCE_END = re.compile(r"[.!?…。！？｡।॥؟۔።៕။։][\"'”’»›)\]}）」』】》〉]*\Z")
_MAX_TURNS = 5
_LONG_SENTENCE = 4

_PLAIN = "convert the provided text to speech"
_WITH_REFERENCE = "convert the provided text to speech reference to the following:\n\nText:\n"
_SPEECH = "\n\nSpeech:\n"


@dataclass(frozen=True)
class Reference:
    """A voice: what is said, and its codes, int64 ``(codebooks, frames)``."""

    text: str
    codes: np.ndarray


# Text to batches ------------------------------------------------------------------------------------------------


def split_turns(text: str) -> list[str]:
    """Turns of a text with speaker tags, each a tag and what follows, stripped; empty for a text without tags.

    Text before the first tag is a turn without tag (the reference drops it).
    """
    starts = [match.start() for match in _TAG.finditer(text)]
    if not starts:
        return []
    bounds = [0, *starts, len(text)] if starts[0] else [*starts, len(text)]
    turns = [text[a:b].strip() for a, b in pairwise(bounds)]
    return [turn for turn in turns if turn]


def split_sentences(text: str, budget: int) -> list[str]:
    """Pieces of about ``budget`` UTF-8 bytes that end at sentence ends, whitespace at the joints dropped.

    A longer sentence stays whole up to four times the budget, then it is cut where a speaker would pause.
    """
    size = len(text.encode())
    if size <= budget:
        return [text]
    spans: list[tuple[int, int]] = []
    at = 0
    for piece in split_text(text, max(1, budget * len(text) // size)):
        at = text.index(piece, at)
        stop = at + len(piece)
        first, last = spans[-1] if spans else (at, at)
        goes_on = last > first and not _SENTENCE_END.search(text[first:last])
        if goes_on and len(text[first:stop].encode()) <= _LONG_SENTENCE * budget:
            spans[-1] = (first, stop)
        else:
            spans.append((at, stop))
        at = stop
    return [text[first:last] for first, last in spans]


def _split_turn(turn: str, budget: int) -> list[str]:
    """A turn over the budget in pieces, each under the turn's own tag."""
    tag = _TAG.match(turn)
    if tag is None or len(turn.encode()) <= budget:
        return split_sentences(turn, budget)
    return [tag.group() + piece for piece in split_sentences(turn[tag.end() :], budget)]


def pack_turns(turns: Sequence[str], chunk_length: int, max_turns: int = _MAX_TURNS) -> list[str]:
    """Join turns by newlines, as many as fit: at most ``max_turns``, and no further one that would bring a batch over
    ``chunk_length`` bytes (separators not counted)."""
    batches: list[list[str]] = []
    used = 0
    for turn in turns:
        size = len(turn.encode())
        if not batches or len(batches[-1]) >= max_turns or used + size > chunk_length:
            batches.append([])
            used = 0
        batches[-1].append(turn)
        used += size
    return ["\n".join(batch) for batch in batches]


def batch_texts(text: str, chunk_length: int) -> list[str]:
    """What is generated one after the other for ``text``; a short text without tags is one batch, unchanged."""
    turns = split_turns(text)
    if not turns:
        return split_sentences(text, chunk_length)
    return pack_turns([piece for turn in turns for piece in _split_turn(turn, chunk_length)], chunk_length)


# Batches to columns ---------------------------------------------------------------------------------------------


class Conversation:
    """The growing prompt of one request. Per batch: :meth:`ask`, generate, :meth:`answer`.

    Every part is tokenised on its own and the ids are joined, so BPE merges nothing across parts.
    """

    def __init__(self, tokenizer: FishTokenizer, codebooks: int, references: Sequence[Reference] = ()) -> None:
        """Raises :class:`BadRequest` for codes that are not ``(codebooks, frames)``."""
        self._tokenizer = tokenizer
        self._codebooks = codebooks
        self._system = self._message("system", *self._system_parts(references))
        self._turns: list[list[np.ndarray]] = []

    def _text(self, text: str) -> np.ndarray:
        return self._ids(self._tokenizer.encode(text))

    def _ids(self, ids: Sequence[int]) -> np.ndarray:
        """Columns ``(1 + codebooks, n)`` of text tokens."""
        columns = np.zeros((1 + self._codebooks, len(ids)), np.int64)
        columns[0] = ids
        return columns

    def _frames(self, codes: np.ndarray) -> np.ndarray:
        """Columns of audio frames; the token of a frame follows from its first code."""
        codes = np.asarray(codes, np.int64)
        if codes.ndim != 2 or len(codes) != self._codebooks:
            raise BadRequest(
                f"codes must have shape ({self._codebooks}, frames), not {codes.shape}", param="references"
            )
        last = self._tokenizer.semantic_end - self._tokenizer.semantic_begin
        if codes.size and not (codes[0].min() >= 0 and codes[0].max() <= last):
            raise BadRequest(f"the first codebook's codes must be 0 to {last}", param="references")
        return np.concatenate((codes[:1] + self._tokenizer.semantic_begin, codes))

    def _open(self, role: str) -> np.ndarray:
        return np.concatenate((self._ids([self._tokenizer.im_start]), self._text(f"{role}\n")), 1)

    def _close(self) -> np.ndarray:
        return np.concatenate((self._ids([self._tokenizer.im_end]), self._text("\n")), 1)

    def _message(self, role: str, *parts: np.ndarray) -> np.ndarray:
        return np.concatenate((self._open(role), *parts, self._close()), 1)

    def _system_parts(self, references: Sequence[Reference]) -> list[np.ndarray]:
        if not references:
            return [self._text(_PLAIN)]
        texts = [
            reference.text if _TAG.search(reference.text) else f"<|speaker:{index}|>{reference.text}"
            for index, reference in enumerate(references)
        ]
        frames = [self._frames(reference.codes) for reference in references]
        return [self._text(_WITH_REFERENCE), self._text("\n".join(texts)), self._text(_SPEECH), *frames]

    def _asked(self, text: str) -> np.ndarray:
        voice = self._ids([self._tokenizer.voice])
        return np.concatenate((self._message("user", self._text(text)), self._open("assistant"), voice), 1)

    def least(self, text: str) -> int:
        """Positions of the references and this text alone."""
        return self._system.shape[1] + self._asked(text).shape[1]

    def ask(self, text: str, max_positions: int) -> Prompt:
        """The prompt for the next batch, whose speech comes after it. A batch before it that was never answered counts
        as answered by silence.

        When it would be longer than ``max_positions`` the older half of the turns is left out, again and again: half,
        since a prompt that begins anew loses the prefix cache, and one turn less would do so for every batch.

        Raises:
            BadRequest: the references and this text alone are longer.
        """
        if self._turns and len(self._turns[-1]) == 1:
            self.answer(np.zeros((self._codebooks, 0), np.int64))
        asked = self._asked(text)
        while True:
            columns = np.concatenate((self._system, *(p for turn in self._turns for p in turn), asked), 1)
            if columns.shape[1] <= max_positions:
                break
            if not self._turns:
                raise BadRequest(
                    f"references and text take {columns.shape[1]} positions, the limit is {max_positions}",
                    param="input",
                )
            self._turns = self._turns[(len(self._turns) + 1) // 2 :]
        self._turns.append([asked])
        return Prompt(tokens=columns[0].copy(), codes=columns[1:].copy())

    def answer(self, codes: np.ndarray) -> None:
        """The codes ``(codebooks, frames)`` generated for the last :meth:`ask`, unclamped: context from now on."""
        self._turns[-1] += [self._frames(codes), self._close()]
