"""A recipe behind the real server, in this process: requests as a client of the API sends them."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from omni.messages import SpeechRequest
from omni.server.app import create_app
from omni.server.settings import ServerSettings
from omni.service import Service
from omni.testing.kit import fail
from omni.testing.samples import Request


class Client:
    """Sends what the kit's requests hold, with fields added or replaced."""

    def __init__(self, service: Service, http: httpx.AsyncClient) -> None:
        (self._model,) = service.pipelines
        self._http = http

    async def send(self, request: Request, **fields: Any) -> httpx.Response:
        """POST a request to the endpoint of its task. Speech comes as ``pcm`` at the recipe's own rate."""
        if isinstance(request, SpeechRequest):
            body = {"model": self._model, "response_format": "pcm", "sample_rate": "native", **_speech(request)}
            return await self._http.post("/v1/audio/speech", json={**body, **fields})
        data = {"model": self._model, **_given(request, "language", "prompt", "temperature", "seed"), **request.params}
        form = {
            name: value if isinstance(value, str) else json.dumps(value) for name, value in {**data, **fields}.items()
        }
        files = {"file": ("clip.wav", request.audio.tobytes())}
        return await self._http.post("/v1/audio/transcriptions", data=form, files=files)


def _speech(request: SpeechRequest) -> dict[str, Any]:
    body = {"input": request.text, **_given(request, "voice", "language", "instructions", "seed"), **request.params}
    if request.speed != 1.0:
        body["speed"] = request.speed
    if request.references:
        body["references"] = [
            {"audio": base64.b64encode(r.audio.tobytes()).decode(), "text": r.text} for r in request.references
        ]
    return body


def _given(request: Request, *names: str) -> dict[str, Any]:
    return {name: value for name in names if (value := getattr(request, name)) not in (None, "")}


@asynccontextmanager
async def serving(service: Service, timeout: float) -> AsyncIterator[Client]:
    """``timeout``: seconds for one answer."""
    app = create_app(service, ServerSettings(aliases=False))
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://conformance", timeout=timeout) as http:
        yield Client(service, http)


def refused(response: httpx.Response, what: str, param: str | None, *words: str, status: int = 400) -> None:
    """Fail unless ``response`` is an error of ``status`` whose envelope names ``param`` and has ``words`` in its
    message."""
    if response.status_code != status:
        fail(f"{what} must be refused with {status}, it gave {response.status_code}: {_body(response)}")
    try:
        error = response.json()["error"]
        named, message = error["param"], str(error["message"])
    except (ValueError, KeyError, TypeError):
        fail(f"{what} is refused without an error envelope: {_body(response)}")
    if param is not None and named != param:
        fail(f"{what} is refused, but the error names {named!r}, not {param!r}: {message}")
    for word in words:
        if word not in message:
            fail(f"{what} is refused, but the message does not say {word!r}: {message}")


def _body(response: httpx.Response) -> str:
    text = response.headers.get("content-type", "").startswith(("application/json", "text/"))
    return response.text[:300] if text else f"{len(response.content)} bytes"
