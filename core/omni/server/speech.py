"""POST /v1/audio/speech."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import numpy as np
from numpy.typing import NDArray
from starlette.types import Receive, Scope, Send

from omni.audio import MEDIA_TYPES, AudioOutput
from omni.errors import StageFailed
from omni.messages import AudioChunk
from omni.pipeline import Pipeline, RequestStream
from omni.recipe import Speech
from omni.server.body import read_body
from omni.server.exchange import Exchange
from omni.server.fields import decode_object
from omni.server.responses import SSE_HEADERS, Answer, Headers, event
from omni.server.runtime import Runtime
from omni.server.settings import MIB
from omni.server.speech_fields import FIELDS, SpeechFields, SpeechPlan

PATH = "/v1/audio/speech"

_COALESCE = 1 << 18
"""Samples that are joined into one write at most."""
_INLINE = 1 << 18
"""Samples that plain conversion to 16 bit may take on the event loop (under a millisecond)."""
_INLINE_HEAVY = 1 << 11
"""The same where a codec, a resampler or a stretch works on them."""
_PACE = 0.02
"""Seconds between two writes to a client, or as long as the first of them plays: what is made faster than that goes
out together. A client does not hear it, and under load it halves the cost of a request."""


class Sound:
    """The pipeline's chunks of one request, encoded; and what is to be known of them in the end."""

    def __init__(self, plan: SpeechPlan, pipeline: Pipeline) -> None:
        task = pipeline.recipe.task
        assert isinstance(task, Speech)
        self._plan = plan
        self._source_rate = task.sample_rate
        self._downmix = task.channels > plan.channels
        self._heavy = plan.format not in ("pcm", "wav") or plan.sample_rate != task.sample_rate or plan.stretch != 1.0
        self._output: AudioOutput | None = None
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

    async def encode(self, samples: NDArray[Any]) -> bytes:
        """The bytes that are ready when these samples are in."""
        if len(samples) <= (_INLINE_HEAVY if self._heavy else _INLINE):
            return self._out.write(samples)
        return await asyncio.to_thread(self._out.write, samples)

    async def finish(self) -> bytes:
        return await asyncio.to_thread(self._out.finish) if self._heavy else self._out.finish()

    async def whole(self, parts: list[NDArray[Any]]) -> bytes:
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

    def usage(self) -> dict[str, int]:
        return {
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "total_tokens": self.input_tokens + self.output_tokens,
        }


class SpeechEndpoint:
    """An ASGI endpoint: the framework's request and response objects would cost more than the work."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._fields: dict[str, SpeechFields] = {}
        runtime.on_service(
            lambda service: self._fields.update(
                (name, SpeechFields(pipeline, runtime.settings))
                for name, pipeline in service.pipelines.items()
                if isinstance(pipeline.recipe.task, Speech)
            )
        )

    def schemas(self) -> dict[str, dict[str, Any]]:
        """JSON schemas of the served recipes' own parameters, by recipe."""
        return {name: fields.parameters.schema() for name, fields in self._fields.items()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        runtime = self._runtime
        settings = runtime.settings
        exchange: Exchange = scope["omni"]
        exchange.endpoint = PATH
        runtime.service  # noqa: B018 - refuses before the body is read
        with runtime.memory.share() as share:
            raw = await read_body(scope, receive, int(settings.max_json_mb * MIB), settings.body_seconds, share)
            body = decode_object(raw) if len(raw) < MIB else await asyncio.to_thread(decode_object, raw)
            del raw
            await self.speak(scope, receive, send, body)

    async def speak(
        self, scope: Scope, receive: Receive, send: Send, body: dict[str, Any], more_headers: Headers = ()
    ) -> None:
        """Answer with the speech that ``body``, a request's fields, asks for. It is emptied: what it holds may be
        large, and the answer take long."""
        runtime = self._runtime
        exchange: Exchange = scope["omni"]
        model = body.get("model")
        pipeline = runtime.service.find(None if model is None else FIELDS["model"].check(model), "speech")
        exchange.model = pipeline.recipe.name
        plan = await self._fields[pipeline.recipe.name].plan(body)
        body.clear()
        stream = pipeline.submit(plan.request, exchange.unique_id())
        headers = [*(SSE_HEADERS if plan.sse else _headers(plan)), *more_headers]
        sound = Sound(plan, pipeline)
        async with Answer(scope, receive, send, stream, runtime.settings.stall_seconds, headers) as answer:
            if plan.whole:
                await self._send_whole(sound, stream, answer, exchange)
            else:
                await self._send_stream(plan, sound, stream, answer, exchange)
        runtime.metrics.audio(exchange.model, "speech", sound.seconds)

    async def _send_whole(self, sound: Sound, stream: RequestStream, answer: Answer, exchange: Exchange) -> None:
        parts = [sound.take(chunk) async for chunk in stream]
        sound.check()
        body = await sound.whole(parts)
        finish = sound.finish_reason
        self._runtime.metrics.first_audio(exchange.model, exchange.seconds)
        await answer.whole(
            body, [(b"x-omni-finish-reason", finish.encode("latin-1", "replace"))] if finish is not None else []
        )

    async def _send_stream(
        self, plan: SpeechPlan, sound: Sound, stream: RequestStream, answer: Answer, exchange: Exchange
    ) -> None:
        try:
            now = asyncio.get_running_loop().time
            due = 0.0
            async for chunk in stream:
                if (wait := due - now()) > 0:
                    await stream.gather(wait)
                before, written = sound.seconds, now()
                data = await sound.encode(sound.take_ready(chunk, stream))
                if data:
                    if not answer.started:
                        self._runtime.metrics.first_audio(exchange.model, exchange.seconds)
                    await answer.write(_delta(data) if plan.sse else data)
                due = written + min(_PACE, sound.seconds - before)
            sound.check()
            tail = await sound.finish()
            if not answer.started:
                self._runtime.metrics.first_audio(exchange.model, exchange.seconds)
            if plan.sse:
                done: dict[str, Any] = {"type": "speech.audio.done", "usage": sound.usage()}
                if sound.finish_reason is not None:
                    done["finish_reason"] = sound.finish_reason
                tail = (_delta(tail) if tail else b"") + event(done)
            await answer.end(tail)
        except Exception as error:  # noqa: BLE001 - reported; raised again when it can still become a status
            await answer.break_off(error, sse=plan.sse)


def _delta(data: bytes) -> bytes:
    return b'data: {"type":"speech.audio.delta","audio":"' + base64.b64encode(data) + b'"}\n\n'


def _headers(plan: SpeechPlan) -> Headers:
    return (
        (b"content-type", MEDIA_TYPES[plan.format].encode()),
        (b"x-sample-rate", str(plan.sample_rate).encode()),
        (b"x-channels", str(plan.channels).encode()),
    )
