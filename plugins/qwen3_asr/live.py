"""Transcripts of what is still being said: the reference's protocol of partial texts, without engine, clock or network.

Every ``chunk_seconds`` the model hears everything so far once more. It goes on from what it wrote the last time, but
for the last few tokens, which more sound may change; so the text grows, and its end is rolled back now and then. A
caller moves the turns through the recipe's stages::

    live = LiveTranscript(tokenizer)
    live.feed(samples)
    while (span := live.turn()) is not None:
        live.answer(...)        # what encoder and recogniser make of the span
        print(live.text)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from omni import BadRequest
from qwen3_asr.features import SAMPLE_RATE, SHORTEST, log_mel
from qwen3_asr.languages import NAMES
from qwen3_asr.messages import Span
from qwen3_asr.tokenizer import AsrTokenizer
from qwen3_asr.transcripts import parse

_BROKEN = "�"


@dataclass(frozen=True)
class LiveSettings:
    """A turn comes with every ``chunk_seconds`` of sound. The first ``unfixed_chunks`` turns begin anew, later ones
    keep all but ``unfixed_tokens`` of what was written. A session longer than ``max_seconds`` is refused: a turn costs
    as much as everything that was said."""

    chunk_seconds: float = 2.0
    unfixed_chunks: int = 2
    unfixed_tokens: int = 5
    max_seconds: float = 1200.0


class LiveTranscript:
    """One speaker's session. ``raw``: all that the model has written; ``language`` (as the model names it) and
    ``text``: what that says; ``turns``: how often it was asked."""

    def __init__(
        self,
        tokenizer: AsrTokenizer,
        settings: LiveSettings | None = None,
        *,
        language: str | None = None,
        context: str = "",
        max_new_tokens: int | None = None,
    ) -> None:
        """``language``: ISO code, None for detection; ``context``: text that belongs to the sound."""
        self._tokenizer = tokenizer
        self._settings = settings or LiveSettings()
        self._chunk = max(1, round(self._settings.chunk_seconds * SAMPLE_RATE))
        self._code, self._context, self._max_new_tokens = language, context, max_new_tokens
        self._heard = np.zeros(0, np.float32)
        self._waiting = np.zeros(0, np.float32)
        self._prefix: str | None = None
        self.raw = self.text = self.language = ""
        self.turns = 0

    def feed(self, samples: np.ndarray) -> None:
        """More sound: float32 ``(n,)`` at 16 kHz.

        Raises:
            BadRequest: the session is longer than ``max_seconds``.
        """
        limit = self._settings.max_seconds
        if len(self._heard) + len(self._waiting) + len(samples) > limit * SAMPLE_RATE:
            raise BadRequest(f"a live session takes up to {limit:g} s of sound", param="audio", code="audio_too_long")
        self._waiting = np.concatenate((self._waiting, np.asarray(samples, np.float32)))

    def turn(self) -> Span | None:
        """What the model is to hear next, None as long as a chunk is not complete. To be answered before the next."""
        if len(self._waiting) < self._chunk:
            return None
        return self._next(self._chunk, last=False)

    def finish(self) -> Span | None:
        """The last turn, after those of :meth:`turn`; None when nothing has come since."""
        return self._next(len(self._waiting), last=True) if len(self._waiting) else None

    def answer(self, written: str) -> None:
        """What the model has written in this turn."""
        if self._prefix is None:
            raise ValueError("nothing was asked")
        self.raw, self._prefix = self._prefix + written, None
        self.turns += 1
        self.language, self.text = parse(self.raw, None if self._code is None else NAMES[self._code])

    def _next(self, count: int, *, last: bool) -> Span:
        if self._prefix is not None:
            raise ValueError("the last turn has not been answered")
        self._heard = np.concatenate((self._heard, self._waiting[:count]))
        self._waiting = self._waiting[count:]
        self._prefix = self._kept(last)
        heard = self._heard
        return Span(
            position=0,
            last=True,
            start=0.0,
            seconds=len(heard) / SAMPLE_RATE,
            mel=log_mel(np.pad(heard, (0, max(0, SHORTEST - len(heard))))),
            language=self._code,
            prompt=self._context,
            max_new_tokens=self._max_new_tokens,
            written=self._prefix,
        )

    def _kept(self, last: bool) -> str:
        """The beginning of the next answer. The last turn keeps at least a token, whole or not, as in the reference."""
        if self.turns < self._settings.unfixed_chunks:
            return ""
        tokens, dropped = self._tokenizer.encode_marked(self.raw), self._settings.unfixed_tokens
        if last:
            return self._tokenizer.decode(tokens[: max(1, len(tokens) - dropped)])
        for end in range(len(tokens) - dropped, 0, -1):
            kept = self._tokenizer.decode(tokens[:end])
            if _BROKEN not in kept:
                return kept
        return ""
