"""Transcripts of what is still being said: what a realtime endpoint asks :meth:`omni.service.Service.live` for.

A recipe that has them names in ``Transcription.live`` what makes a :class:`LiveTranscript`, a state machine without
engine, clock or network; its turns are requests, which pass through the recipe's stages like those of files.
"""

from __future__ import annotations

from typing import Any, Protocol, cast

from numpy.typing import NDArray

from omni.errors import BadRequest
from omni.messages import TranscriptionRequest
from omni.pipeline import Pipeline
from omni.plugins import import_path
from omni.recipe import Transcription


class LiveTranscript(Protocol):
    """One speaker's session. ``text`` is what is said so far; later turns may change its end. ``language``: ISO code,
    None as long as it is unknown."""

    sample_rate: int
    text: str
    language: str | None

    def feed(self, samples: NDArray[Any]) -> None:
        """More sound: mono at ``sample_rate``, floating in [-1, 1] or int16. Raises BadRequest for anything else."""

    def turn(self) -> TranscriptionRequest | None:
        """What to ask the recipe next; None as long as there is too little new. To be answered before the next."""

    def finish(self) -> TranscriptionRequest | None:
        """The last turn; None when nothing new has come since the one before."""

    def answer(self, written: str) -> None:
        """The text of all chunks that the recipe gave for a turn."""


class LiveSession:
    """A live transcript on a pipeline. Not to be used by two tasks at once."""

    def __init__(self, pipeline: Pipeline, **fields: Any) -> None:
        """``fields``: ``language`` (ISO code), ``prompt`` and what else the recipe's sessions take.

        Raises:
            BadRequest: the recipe transcribes whole files only, or a field has a wrong value.
        """
        task = pipeline.recipe.task
        if not isinstance(task, Transcription) or task.live is None:
            raise BadRequest(
                f"the model {pipeline.recipe.name!r} gives no live transcripts",
                param="model",
                code="unsupported_parameter",
            )
        make = import_path(task.live, f"live transcripts of recipe {pipeline.recipe.name!r}")
        self._pipeline = pipeline
        self._transcript = cast(LiveTranscript, make(pipeline.entry_options, **fields))
        self.finish_reason: str | None = None

    @property
    def sample_rate(self) -> int:
        """Of the sound that is taken, in Hz."""
        return self._transcript.sample_rate

    @property
    def text(self) -> str:
        """What is said so far; the next turn may change its end."""
        return self._transcript.text

    @property
    def language(self) -> str | None:
        return self._transcript.language

    async def feed(self, samples: NDArray[Any]) -> bool:
        """Hear more, see :meth:`LiveTranscript.feed`. Returns whether enough has come for a new ``text``."""
        self._transcript.feed(samples)
        heard = False
        while (request := self._transcript.turn()) is not None:
            await self._ask(request)
            heard = True
        return heard

    async def finish(self) -> None:
        """There is no more sound; ``text`` is final now."""
        if (request := self._transcript.finish()) is not None:
            await self._ask(request)

    async def _ask(self, request: TranscriptionRequest) -> None:
        written = []
        async with self._pipeline.submit(request) as stream:
            async for chunk in stream:
                written.append(chunk.text)
                self.finish_reason = chunk.finish_reason or self.finish_reason
        self._transcript.answer("".join(written))
