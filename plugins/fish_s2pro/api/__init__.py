"""Fish Audio's own HTTP API, for the clients that exist for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fastapi import Response, WebSocket

from fish_s2pro.api.asr import Hearing
from fish_s2pro.api.fields import TTSRequest
from fish_s2pro.api.live import live
from fish_s2pro.api.tts import Speaking
from omni import OmniError
from omni.endpoints import Endpoint

if TYPE_CHECKING:
    from fastapi import APIRouter

    from omni.service import Service


def add_routes(router: APIRouter, service: Service, recipes: Sequence[str]) -> None:
    """``recipes``: the served ones that this API can speak with, at least one."""
    speaking = Speaking({name: service.pipelines[name].recipe.aliases for name in recipes})

    @router.post(
        "/v1/tts", summary="Text to speech, as Fish Audio's clients ask for it", tags=["fish"], openapi_extra=_BODY
    )
    async def tts() -> Response:
        return Endpoint(speaking, _envelope)

    @router.websocket("/v1/tts/live")
    async def tts_live(socket: WebSocket) -> None:
        await live(socket, speaking)

    @router.get("/v1/health", summary="Whether the process is alive, as Fish's server says it", tags=["fish"])
    @router.post("/v1/health", include_in_schema=False)
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    if (pipeline := service.default("transcription")) is not None:
        hearing = Hearing(pipeline.recipe)

        @router.post("/v1/asr", summary="Speech to text, as Fish Audio's clients ask for it", tags=["fish"])
        async def asr() -> Response:
            return Endpoint(hearing, _envelope)


def _envelope(error: OmniError) -> dict[str, Any]:
    """Fish's clients show ``message`` alone, so it names the field as well."""
    message = error.message if error.status != 500 else "the server failed on this request"
    if error.param is not None and repr(error.param) not in message:
        message = f"{error.param!r}: {message}"
    return {"status": error.status, "message": message}


_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            kind: {"schema": TTSRequest.model_json_schema()}
            for kind in ("application/json", "application/msgpack", "multipart/form-data")
        },
    }
}
