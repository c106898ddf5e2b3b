"""A plugin with endpoints of its own, and recipes whose weights have another rate than they declare."""

from __future__ import annotations

from contextlib import aclosing
from typing import Annotated, Any

import msgspec
from fastapi import Response, WebSocket
from pydantic import BaseModel, ConfigDict, Field
from server_toys import HEAR, STEREO, TONE, Spoken, Tone

from omni import AudioChunk, OmniError, StageSpec, hookimpl
from omni.endpoints import Call, Endpoint, Speaker, validated

REAL_RATE = 16000


class Low(Tone):
    """Its weights speak at 16 kHz; the task says 24."""

    def _speak(self, item: Spoken) -> AudioChunk:
        chunk = super()._speak(item)
        rate = 12000 if item.word == "WAVER" else REAL_RATE
        return msgspec.structs.replace(chunk, samples=chunk.samples[: REAL_RATE // 10], sample_rate=rate)


LOW = TONE.model_copy(
    update={"name": "low", "stages": (TONE.stages[0], StageSpec("sound", "endpoint_toys:Low", after="words"))}
)


class SayParams(BaseModel):
    model_config = ConfigDict(extra="forbid")

    words: str
    times: Annotated[int, Field(ge=1, le=3)] = 1


def envelope(error: OmniError) -> dict[str, Any]:
    return {"why": error.message}


class Plugin:
    @hookimpl
    def omni_recipes(self) -> list[Any]:
        return [TONE, LOW, STEREO, HEAR]

    @hookimpl
    def omni_routes(self, router: Any, service: Any) -> None:
        @router.post("/v1/say", summary="Says words")
        async def say() -> Response:
            return Endpoint(self.say, envelope)

        @router.post("/v1/say-plainly")
        async def say_plainly() -> Response:
            return Endpoint(self.say)

        @router.post("/v1/form")
        async def form() -> Response:
            return Endpoint(self.form)

        @router.websocket("/v1/talk")
        async def talk(socket: WebSocket) -> None:
            await socket.accept()
            references = [{"audio": socket.query_params["reference"]}]
            fields = {"model": "stereo", "response_format": "pcm", "references": references}
            with Speaker(socket, fields) as speaker:
                for text in ("one", "two"):
                    async with aclosing(speaker.say(text)) as sound:
                        async for data in sound:
                            await socket.send_bytes(data)
                await socket.send_bytes(await speaker.finish())
            await socket.close()

        @router.post("/v1/packed")
        async def packed() -> Response:
            return Endpoint(self.packed)

        @router.post("/v1/hear")
        async def hear() -> Response:
            return Endpoint(self.hear)

    async def say(self, call: Call) -> None:
        params = validated(SayParams, await call.json())
        text = " ".join([params.words] * params.times)
        await call.speak({"model": "tone", "input": text, "response_format": "pcm"}, {"X-Times": str(params.times)})

    async def form(self, call: Call) -> None:
        parts = [[name, len(value), isinstance(value, bytes)] for name, value in await call.form()]
        await call.reply({"type": call.content_type, "parts": parts})

    async def packed(self, call: Call) -> None:
        fields = await call.msgpack()
        await call.speak({"model": "tone", "input": fields["words"], "response_format": "pcm"})

    async def hear(self, call: Call) -> None:
        transcript = await call.transcribe({"language": call.headers.get("language")}, bytes(await call.read()))
        await call.reply({"text": transcript.text, "seconds": transcript.duration})
