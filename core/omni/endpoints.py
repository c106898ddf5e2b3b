"""What plugins make endpoints of: the server's limits on what comes in, its own way of answering.

In an implementation of the hook ``omni_routes``::

    @router.post("/v1/say")
    async def say() -> Response:
        return Endpoint(answer)

    async def answer(call: Call) -> None:
        body = await call.json()
        await call.speak({"model": "my-recipe", "input": body["words"], "response_format": "wav"})
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

import msgspec
import numpy as np
from python_multipart.exceptions import FormParserError
from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from omni.errors import BadRequest, OmniError, StageFailed, from_wire
from omni.messages import ReferenceAudio
from omni.server.body import Share, read_body
from omni.server.errors import body_of, report, request_id_of, send_error
from omni.server.exchange import Exchange
from omni.server.fields import validated
from omni.server.objects import decode_msgpack, read_object, size_of
from omni.server.responses import Answer
from omni.server.runtime import Runtime
from omni.server.settings import MIB
from omni.server.sound import Sound
from omni.server.speech import SpeechEndpoint
from omni.server.transcript_formats import Transcript
from omni.server.transcription_fields import TranscriptionFields

__all__ = ["Call", "Endpoint", "Speaker", "decode_msgpack", "reported", "validated"]

_MAX_PARTS = 64
_MAX_FIELD = 1 << 20
_SLICE = 1 << 18


class Call:
    """One request to an endpoint."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, share: Share) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        self._share = share
        self._runtime: Runtime = scope["app"].state.runtime
        self._exchange: Exchange = scope["omni"]
        self.headers = Headers(scope=scope)

    @property
    def content_type(self) -> str:
        """Of the body, in lower case and without parameters; empty when the client gave none."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    async def read(self) -> bytes | bytearray:
        """The whole body.

        Raises:
            TooLarge, Busy, OmniError: it is over a limit of the server, in size or time, or compressed.
        """
        limit = int(self._runtime.settings.max_json_mb * MIB)
        return await read_body(self._scope, self._receive, limit, self._runtime.intake, self._share, "a body")

    async def json(self) -> dict[str, Any]:
        """The body, a JSON object. Raises BadRequest for anything else; see :meth:`read` for the rest."""
        limit = int(self._runtime.settings.max_json_mb * MIB)
        return await read_object(self._scope, self._receive, limit, self._runtime.intake, self._share, "a body")

    async def msgpack(self) -> dict[str, Any]:
        """The body, a msgpack map whose keys are names. Raises BadRequest for anything else; see :meth:`read` for the
        rest."""
        body = await self.read()
        self._share.take(len(body))
        value = decode_msgpack(body) if len(body) < _SLICE else await asyncio.to_thread(decode_msgpack, body)
        self._share.settle(size_of(value))
        return value

    async def form(self) -> list[tuple[str, str | bytes]]:
        """The parts of a multipart body in their order: fields as text, files as bytes.

        Raises:
            BadRequest: malformed, incomplete, or more than 64 parts; a field over 1 MiB.
        """
        body = await self.read()
        self._share.take(len(body))

        async def slices() -> AsyncGenerator[bytes, None]:
            for start in range(0, len(body), _SLICE):
                yield bytes(body[start : start + _SLICE])

        limits: Any = {"max_files": _MAX_PARTS, "max_fields": _MAX_PARTS, "max_part_size": _MAX_FIELD}
        parser = _Parser(self.headers, slices(), **limits)
        try:
            form = await parser.parse()
        except (MultiPartException, FormParserError) as error:
            raise BadRequest(f"the multipart body is malformed: {error}") from None
        try:
            if not parser.complete:
                raise BadRequest("the multipart body ends before its closing boundary")
            parts = [
                (name, await value.read() if isinstance(value, UploadFile) else value)
                for name, value in form.multi_items()
            ]
            self._share.settle(sum(size_of(value) for _, value in parts))
            return parts
        finally:
            await form.close()

    async def speak(self, fields: dict[str, Any], headers: Mapping[str, str] | None = None) -> None:
        """Answer with speech: ``fields`` are those of ``POST /v1/audio/speech``, where ``audio`` of a reference may be
        bytes as well. ``headers`` are added to a successful answer.

        Raises:
            OmniError: while nothing has been sent.
        """
        endpoint: SpeechEndpoint = self._scope["app"].state.speech
        more = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in (headers or {}).items()]
        await endpoint.speak(self._scope, self._receive, self._send, fields, self._share, more)

    async def transcribe(self, fields: dict[str, Any], audio: bytes) -> Transcript:
        """What is said in an audio file: ``fields`` are those of ``POST /v1/audio/transcriptions``. Given up when the
        client goes away.

        Raises:
            OmniError: a field is wrong, no served recipe transcribes, or the file is no audio.
        """
        runtime, exchange = self._runtime, self._exchange
        pipeline = runtime.service.find(fields.get("model"), "transcription")
        exchange.model = pipeline.recipe.name
        plan = TranscriptionFields(pipeline).plan(fields, np.frombuffer(audio, np.uint8), text=False)
        stream = pipeline.submit(plan.request, exchange.unique_id())
        transcript = Transcript()
        stall = runtime.settings.stall_seconds
        async with Answer(self._scope, self._receive, self._send, stream, stall, ()):
            async for chunk in stream:
                transcript.add(chunk)
        runtime.metrics.audio(exchange.model, "transcription", transcript.duration)
        return transcript

    async def reply(self, data: Any) -> None:
        """Answer with JSON."""
        response = Response(msgspec.json.encode(data), media_type="application/json")
        await response(self._scope, self._receive, self._send)


class Speaker:
    """Speaks one text after the other, as one continuous stream of sound: what an endpoint on a WebSocket sends.

    ``fields`` as for :meth:`Call.speak`, without ``input``. To be used in a ``with`` block, which refuses (Busy) when
    the server has no room for them.
    """

    def __init__(self, connection: HTTPConnection, fields: dict[str, Any]) -> None:
        self._runtime: Runtime = connection.app.state.runtime
        self._endpoint: SpeechEndpoint = connection.app.state.speech
        self._fields = dict(fields)
        self._share = self._runtime.memory.share()
        self._sound: Sound | None = None
        self._model = ""

    async def say(self, text: str) -> AsyncGenerator[bytes, None]:
        """The bytes of a text's sound, as they are made. The work for it ends when the generator is closed.

        Raises:
            OmniError: a field is wrong, or the recipe cannot speak the text now.
        """
        body = {**self._fields, "input": text}
        pipeline = self._endpoint.pipeline(body)
        with self._runtime.memory.share() as share:
            plan = await self._endpoint.plan(pipeline, body, share)
            if self._sound is None:
                self._model, self._sound = pipeline.recipe.name, Sound(plan, pipeline)
                self._keep(plan.request.references)
            sound = self._sound
            async with pipeline.submit(plan.request) as stream:
                async for chunk in stream:
                    async for data in sound.encode(sound.take_ready(chunk, stream)):
                        yield data

    def _keep(self, references: Sequence[ReferenceAudio]) -> None:
        """Have fetched and decoded references at hand for the next text: no address is asked twice."""
        if references:
            kept = [{"audio": reference.audio.tobytes(), "text": reference.text} for reference in references]
            self._fields["references"] = kept
            self._share.settle(size_of(self._fields))

    async def finish(self) -> bytes:
        """The last bytes of the stream. Raises StageFailed when there were texts and none gave a sound."""
        if self._sound is None:
            return b""
        self._sound.check()
        self._runtime.metrics.audio(self._model, "speech", self._sound.seconds)
        return await self._sound.finish()

    def __enter__(self) -> Speaker:
        self._share.settle(size_of(self._fields))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._share.settle(0)
        if self._sound is not None:
            self._sound.close()


def reported(error: Exception, connection: HTTPConnection) -> OmniError:
    """``error`` as a typed one that a client may see, after the log has what it may not."""
    known = error if isinstance(error, OmniError) else StageFailed(f"{type(error).__name__}: {error}")
    request_id = request_id_of(connection.scope)
    report(known, request_id)
    said = body_of(known, request_id)["error"]["message"]
    return from_wire(msgspec.structs.replace(known.to_wire(), message=said))


class Endpoint(Response):
    """What a route returns to have its answer made by ``answer``, which reads the request and sends the response.

    An :class:`omni.OmniError` that is raised before anything was sent becomes OpenAI's error envelope; ``envelope``
    gives further keys of it, for clients that look elsewhere.
    """

    def __init__(
        self,
        answer: Callable[[Call], Awaitable[None]],
        envelope: Callable[[OmniError], dict[str, Any]] | None = None,
    ) -> None:
        super().__init__()
        self._answer = answer
        self._envelope = envelope

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        runtime: Runtime = scope["app"].state.runtime
        with runtime.memory.share() as share:
            try:
                await self._answer(Call(scope, receive, send, share))
            except OmniError as error:
                exchange: Exchange = scope["omni"]
                if exchange.status or self._envelope is None:
                    raise
                await send_error(error, scope, receive, send, self._envelope(error))


class _Parser(MultiPartParser):
    """Notices a body that ends early, and text that is no text."""

    complete = False

    def on_part_end(self) -> None:
        part = self._current_part
        if part.file is None:
            try:
                bytes(part.data).decode(self._charset)
            except UnicodeDecodeError:
                raise MultiPartException(f"the field {part.field_name[:60]!r} is not valid text") from None
        super().on_part_end()

    def on_end(self) -> None:
        self.complete = True
