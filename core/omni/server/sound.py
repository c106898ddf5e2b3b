"""From the chunks of a speech recipe to the bytes of its answer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omni.audio import AudioOutput
from omni.errors import StageFailed
from omni.messages import AudioChunk
from omni.pipeline import Pipeline
from omni.recipe import Speech
from omni.request_stream import RequestStream
from omni.server.speech_fields import SpeechPlan

_COALESCE = 1 << 18
"""Samples that are joined into one write at most."""
_INLINE = 1 << 18
"""Samples that plain conversion to 16 bit may take on the event loop (under a millisecond)."""
_INLINE_HEAVY = 1 << 11
"""The same where a codec, a resampler or a stretch works on them."""
_PIECE_SECONDS = 0.5
"""Sound that these work on in one go."""


class Sound:
    """The pipeline's chunks of one request, encoded; and what is to be known of them in the end. To be closed."""

    def __init__(self, plan: SpeechPlan, pipeline: Pipeline) -> None:
        task = pipeline.recipe.task
        assert isinstance(task, Speech)
        self._plan = plan
        self._source_rate = task.sample_rate
        self._downmix = task.channels > plan.channels
        self._heavy = plan.format not in ("pcm", "wav") or plan.sample_rate != task.sample_rate or plan.stretch != 1.0
        self._output: AudioOutput | None = None
        self._lock = threading.Lock()
        self._closed = False
        self.samples = 0
        self.input_tokens = 0
        self.output_tokens = 0
        self.finish_reason: str | None = None

    @property
    def seconds(self) -> float:
        return self.samples / self._source_rate / self._plan.stretch

    def take(self, chunk: AudioChunk) -> NDArray[Any]:
        """Note what a chunk says and give its samples."""
        if chunk.sample_rate != self._source_rate:
            self._follow(chunk.sample_rate)
        if chunk.usage is not None:
            self.input_tokens += chunk.usage.input_tokens
            self.output_tokens += chunk.usage.output_tokens
        if chunk.finish_reason is not None:
            self.finish_reason = chunk.finish_reason
        samples = chunk.samples
        self.samples += len(samples)
        return samples.mean(axis=1, dtype=np.float32) if self._downmix else samples

    def _follow(self, rate: int) -> None:
        """Weights may have another rate than the recipe says, whose rate clients are still given."""
        if self.samples or self._output is not None:
            raise StageFailed(f"the model went from {self._source_rate} to {rate} Hz in the middle of a request")
        self._source_rate = rate
        self._heavy = True

    def take_ready(self, first: AudioChunk, stream: RequestStream) -> NDArray[Any]:
        """``first`` and what has arrived since: under load one write carries several chunks."""
        samples = self.take(first)
        size = len(samples)
        more: list[NDArray[Any]] = []
        while size < _COALESCE and (chunk := stream.poll()) is not None:
            more.append(self.take(chunk))
            size += len(more[-1])
        return np.concatenate([samples, *more]) if more else samples

    def check(self) -> None:
        """Raises StageFailed when the stream has ended without a sound."""
        if not self.samples:
            raise StageFailed("the model gave no sound")

    @property
    def _out(self) -> AudioOutput:
        if self._output is None:
            plan = self._plan
            self._output = AudioOutput(
                plan.format, self._source_rate, plan.sample_rate, plan.channels, speed=plan.stretch
            )
        return self._output

    async def encode(self, samples: NDArray[Any]) -> AsyncIterator[bytes]:
        """The bytes that are ready when these samples are in; a codec's in several pieces, so that the first of a long
        sentence need not wait for the last."""
        if len(samples) <= (_INLINE_HEAVY if self._heavy else _INLINE):
            if data := self._out.write(samples):
                yield data
            return
        size = int(_PIECE_SECONDS * self._source_rate) if self._heavy else len(samples)
        for start in range(0, len(samples), size):
            write = partial(self._out.write, samples[start : start + size])
            if data := await asyncio.to_thread(self._locked, write):
                yield data

    async def finish(self) -> bytes:
        """The last bytes."""
        return await asyncio.to_thread(self._locked, lambda: self._out.finish()) if self._heavy else self._out.finish()

    async def whole(self, parts: list[NDArray[Any]]) -> bytes:
        """One complete file of all the samples."""
        plan = self._plan
        return await asyncio.to_thread(
            lambda: AudioOutput.whole(
                plan.format,
                np.concatenate(parts),
                self._source_rate,
                plan.sample_rate,
                plan.channels,
                speed=plan.stretch,
            )
        )

    def _locked(self, work: Callable[[], bytes]) -> bytes:
        """In a thread, which goes on when the request is cancelled meanwhile: then it is the one that closes."""
        with self._lock:
            data = work()
        if self._closed:
            self.close()
        return data

    def close(self) -> None:
        """Free the codec, unless a thread is in it."""
        self._closed = True
        if self._output is not None and self._lock.acquire(blocking=False):
            try:
                self._output.close()
            finally:
                self._lock.release()

    def usage(self) -> dict[str, int]:
        return {
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "total_tokens": self.input_tokens + self.output_tokens,
        }
