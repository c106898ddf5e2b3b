"""Transcripts of what is still being said: the reference's protocol of partial texts, without engine, clock or network.

Every ``chunk_seconds`` the model hears everything so far once more. It goes on from what it wrote the last time, but
for the last few tokens, which more sound may change; so the text grows, and its end is rolled back now and then.
:class:`omni.live.LiveSession` moves the turns through the recipe's stages.
"""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from omni import BadRequest, TranscriptionRequest
from qwen3_asr.features import SAMPLE_RATE
from qwen3_asr.languages import NAMES, code_of, unknown_language
from qwen3_asr.transcripts import parse


class LiveSettings(BaseModel):
    """A turn comes with every ``chunk_seconds`` of sound. The first ``unfixed_chunks`` turns begin anew, later ones
    keep all but ``unfixed_tokens`` of what was written. A session longer than ``max_seconds`` is refused: a turn costs
    as much as everything that was said."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    chunk_seconds: Annotated[float, Field(ge=0.1, le=60)] = 2.0
    unfixed_chunks: Annotated[int, Field(ge=0, le=1000)] = 2
    unfixed_tokens: Annotated[int, Field(ge=0, le=1000)] = 5
    max_seconds: Annotated[float, Field(gt=0, le=1200)] = 1200.0


class LiveTranscript:
    """One speaker's session. ``raw``: all that the model has written; ``language`` (ISO code, None: unknown yet) and
    ``text``: what that says; ``turns``: how often it was asked."""

    sample_rate = SAMPLE_RATE

    def __init__(
        self,
        settings: LiveSettings | None = None,
        *,
        language: str | None = None,
        prompt: str | None = None,
        max_new_tokens: int | None = None,
    ) -> None:
        """``language``: ISO code, None for detection; ``prompt``: text that belongs to the sound.

        Raises:
            BadRequest: the model does not know the language.
        """
        if language is not None and language not in NAMES:
            raise unknown_language(language)
        self._settings = settings or LiveSettings()
        self._chunk = max(1, round(self._settings.chunk_seconds * SAMPLE_RATE))
        self._forced, self._prompt, self._max_new_tokens = language, prompt, max_new_tokens
        self._heard = np.zeros(0, np.float32)
        self._waiting = np.zeros(0, np.float32)
        self._asked = False
        self.raw = self.text = ""
        self.language: str | None = None
        self.turns = 0

    def feed(self, samples: np.ndarray) -> None:
        """More sound, ``(n,)`` at 16 kHz: floating in [-1, 1], or int16, of which 32768 is 1.

        Raises:
            BadRequest: it is something else, or the session is longer than ``max_seconds``.
        """
        limit = self._settings.max_seconds
        if samples.ndim != 1 or not (samples.dtype == np.int16 or np.issubdtype(samples.dtype, np.floating)):
            raise BadRequest(
                f"live sound is one channel of float or int16 samples, not {samples.dtype} {samples.shape}",
                param="audio",
            )
        if len(self._heard) + len(self._waiting) + len(samples) > limit * SAMPLE_RATE:
            raise BadRequest(f"a live session takes up to {limit:g} s of sound", param="audio", code="audio_too_long")
        made = samples / np.float32(32768) if samples.dtype == np.int16 else samples.astype(np.float32)
        if not np.isfinite(made).all():
            raise BadRequest("live sound holds samples that are not finite", param="audio")
        self._waiting = np.concatenate((self._waiting, made))

    def turn(self) -> TranscriptionRequest | None:
        """What the model is to hear next, None as long as a chunk is not complete. To be answered before the next."""
        if len(self._waiting) < self._chunk:
            return None
        return self._next(self._chunk, last=False)

    def finish(self) -> TranscriptionRequest | None:
        """The last turn, after those of :meth:`turn`; None when nothing has come since."""
        return self._next(len(self._waiting), last=True) if len(self._waiting) else None

    def answer(self, written: str) -> None:
        """All that the recipe wrote for this turn, with what it kept of the one before."""
        if not self._asked:
            raise ValueError("nothing was asked")
        self.raw, self._asked = written, False
        self.turns += 1
        name, self.text = parse(self.raw, None if self._forced is None else NAMES[self._forced])
        self.language = code_of(name)

    def _next(self, count: int, *, last: bool) -> TranscriptionRequest:
        if self._asked:
            raise ValueError("the last turn has not been answered")
        self._heard = np.concatenate((self._heard, self._waiting[:count]))
        self._waiting = self._waiting[count:]
        self._asked = True
        params: dict[str, Any] = {
            "written": self.raw if self.turns >= self._settings.unfixed_chunks else "",
            "rollback": self._settings.unfixed_tokens,
            "finishing": last,
        }
        if self._max_new_tokens is not None:
            params["max_new_tokens"] = self._max_new_tokens
        audio = self._heard.view(np.uint8)
        return TranscriptionRequest(audio=audio, language=self._forced, prompt=self._prompt, params=params)


def open_live(options: Any, **fields: Any) -> LiveTranscript:
    """A session with the settings of the stage ``audio``."""
    return LiveTranscript(options.live, **fields)
