"""POST /v1/audio/speech."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from typing import Any

from starlette.types import Receive, Scope, Send

from omni.audio import MEDIA_TYPES
from omni.pipeline import Pipeline
from omni.recipe import Speech
from omni.request_stream import RequestStream
from omni.server.body import Share
from omni.server.exchange import Exchange
from omni.server.objects import read_object
from omni.server.responses import SSE_HEADERS, Answer, Headers, event, finish_header
from omni.server.runtime import Runtime
from omni.server.settings import MIB
from omni.server.sound import Sound
from omni.server.speech_fields import FIELDS, SpeechFields, SpeechPlan

PATH = "/v1/audio/speech"

_PACE = 0.02
"""Seconds between two writes to a client, or as long as the first of them plays: what is made faster than that goes
out together. A client does not hear it, and under load it halves the cost of a request."""


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
            body = await read_object(scope, receive, int(settings.max_json_mb * MIB), runtime.intake, share)
            await self.speak(scope, receive, send, body, share)

    def pipeline(self, body: dict[str, Any]) -> Pipeline:
        """The one that a request's fields ask for."""
        model = body.get("model")
        return self._runtime.service.find(None if model is None else FIELDS["model"].check(model), "speech")

    async def plan(self, pipeline: Pipeline, body: dict[str, Any], share: Share) -> SpeechPlan:
        """A request's fields, checked; see :meth:`SpeechFields.plan`."""
        return await self._fields[pipeline.recipe.name].plan(body, share)

    async def speak(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        body: dict[str, Any],
        share: Share,
        more_headers: Headers = (),
    ) -> None:
        """Answer with the speech that ``body``, a request's fields, asks for. It is emptied: what it holds may be
        large, and the answer take long. ``share`` then holds the references alone."""
        runtime = self._runtime
        exchange: Exchange = scope["omni"]
        pipeline = self.pipeline(body)
        exchange.model = pipeline.recipe.name
        plan = await self.plan(pipeline, body, share)
        body.clear()
        share.settle(sum(reference.audio.nbytes for reference in plan.request.references))
        stream = pipeline.submit(plan.request, exchange.unique_id())
        headers = [*(SSE_HEADERS if plan.sse else _headers(plan)), *more_headers]
        sound = Sound(plan, pipeline)
        stall = runtime.settings.stall_seconds
        with contextlib.closing(sound):
            async with Answer(scope, receive, send, stream, stall, headers) as answer:
                if plan.whole:
                    await self._send_whole(sound, stream, answer, exchange)
                else:
                    await self._send_stream(plan, sound, stream, answer, exchange)
        runtime.metrics.audio(exchange.model, "speech", sound.seconds)

    async def _send_whole(self, sound: Sound, stream: RequestStream, answer: Answer, exchange: Exchange) -> None:
        parts = [sound.take(chunk) async for chunk in stream]
        sound.check()
        body = await sound.whole(parts)
        self._runtime.metrics.first_audio(exchange.model, exchange.seconds)
        await answer.whole(body, finish_header(sound.finish_reason))

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
                async for data in sound.encode(sound.take_ready(chunk, stream)):
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
