"""POST /v1/audio/transcriptions."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from starlette.types import Receive, Scope, Send

from omni.errors import BadRequest
from omni.pipeline import Pipeline
from omni.recipe import Transcription
from omni.request_stream import RequestStream
from omni.server.body import Share, header
from omni.server.exchange import Exchange
from omni.server.objects import read_object, size_of
from omni.server.responses import SSE_HEADERS, Answer, event, finish_header
from omni.server.runtime import Runtime
from omni.server.settings import MIB
from omni.server.speech_fields import decode_base64
from omni.server.transcript_formats import CONTENT_TYPES, Transcript, render
from omni.server.transcription_fields import FIELDS, TranscriptionFields, TranscriptionPlan, gather
from omni.server.upload import Form, boundary_of, read_form
from omni.service import Service

PATH = "/v1/audio/transcriptions"
_BODY = "send a multipart form with 'file', or JSON with 'input_audio': {'data': base64, 'format': …}"


class TranscriptionEndpoint:
    """An ASGI endpoint; the body is a form, or JSON with the audio in base64."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._fields: dict[str, TranscriptionFields] = {}
        runtime.on_service(
            lambda service: self._fields.update(
                (name, TranscriptionFields(pipeline))
                for name, pipeline in service.pipelines.items()
                if isinstance(pipeline.recipe.task, Transcription)
            )
        )

    def schemas(self) -> dict[str, dict[str, Any]]:
        """JSON schemas of the served recipes' own parameters, by recipe."""
        return {name: fields.parameters.schema() for name, fields in self._fields.items()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        runtime = self._runtime
        exchange: Exchange = scope["omni"]
        exchange.endpoint = PATH
        service = runtime.service
        boundary = boundary_of(scope)
        with runtime.memory.share() as memory, runtime.spool.share() as disk, Form(memory, disk) as form:
            if boundary is None:
                if "json" not in (header(scope, b"content-type") or "json").lower():
                    raise BadRequest(_BODY, param="file")
                pipeline, plan = await self._from_json(service, scope, receive, memory)
            else:
                pipeline, plan = await self._from_form(service, form, boundary, scope, receive)
            exchange.model = pipeline.recipe.name
            stream = pipeline.submit(plan.request, exchange.unique_id())
            headers = SSE_HEADERS if plan.stream else [(b"content-type", CONTENT_TYPES[plan.format])]
            transcript = Transcript()
            async with Answer(scope, receive, send, stream, runtime.settings.stall_seconds, headers) as answer:
                if plan.stream:
                    await _send_events(transcript, stream, answer)
                else:
                    async for chunk in stream:
                        transcript.add(chunk)
                    body = render(transcript, plan.format, plan.granularities)
                    await answer.whole(body, finish_header(transcript.finish_reason))
            runtime.metrics.audio(exchange.model, "transcription", transcript.duration)

    async def _from_form(
        self, service: Service, form: Form, boundary: bytes, scope: Scope, receive: Receive
    ) -> tuple[Pipeline, TranscriptionPlan]:
        limit = int(self._runtime.settings.max_upload_mb * MIB)
        await read_form(form, scope, receive, boundary, limit, self._runtime.intake)
        pipeline = service.find(next((text for name, text in form.fields if name == "model"), None), "transcription")
        fields = self._fields[pipeline.recipe.name]
        values = gather(form.fields, fields.parameters.names)
        if not form.has_file:
            raise BadRequest("'file' is missing: the audio", param="file", code="missing_required_parameter")
        if not form.file.size:
            raise BadRequest("'file' is empty", param="file")
        return pipeline, fields.plan(values, await form.audio(), text=True)

    async def _from_json(
        self, service: Service, scope: Scope, receive: Receive, share: Share
    ) -> tuple[Pipeline, TranscriptionPlan]:
        limit = int(self._runtime.settings.max_json_mb * MIB)
        body = await read_object(scope, receive, limit, self._runtime.intake, share)
        audio = await _input_audio(body, limit, share)
        model = body.get("model")
        pipeline = service.find(None if model is None else FIELDS["model"].check(model), "transcription")
        return pipeline, self._fields[pipeline.recipe.name].plan(body, audio, text=False)


async def _input_audio(body: dict[str, Any], limit: int, share: Share) -> NDArray[np.uint8]:
    """The bytes of ``{"data": base64, "format": …}``, which is taken out of ``body``; the format is found in the bytes,
    not believed. ``share`` then holds them and what is left of it."""
    given = body.pop("input_audio", None)
    data = given.get("data") if isinstance(given, dict) and set(given) <= {"data", "format"} else None
    if not isinstance(data, str):
        raise BadRequest(_BODY, param="input_audio")
    audio = await decode_base64(data, limit, "input_audio.data", share)
    given.clear()
    share.settle(size_of(body) + audio.nbytes)
    return audio


async def _send_events(transcript: Transcript, stream: RequestStream, answer: Answer) -> None:
    try:
        async for chunk in stream:
            transcript.add(chunk)
            if chunk.text:
                await answer.write(event({"type": "transcript.text.delta", "delta": chunk.text}))
        done = {"type": "transcript.text.done", "text": transcript.text, "usage": transcript.usage()}
        await answer.end(event(done | transcript.ending()))
    except Exception as error:  # noqa: BLE001 - reported; raised again when it can still become a status
        await answer.break_off(error, sse=True)
