"""Recipes of the plugin behind the server's application, in this process."""

from __future__ import annotations

import asyncio
import base64
import io
import wave
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

import httpx
import numpy as np

from omni import SpeechRequest
from omni.config import configure
from omni.pipeline import Pipeline
from omni.plugins import Plugins
from omni.server.app import create_app
from omni.server.settings import ServerSettings
from omni.service import Service

T = TypeVar("T")


class Served:
    """One recipe with weights of a folder; every call runs the loop until it is done."""

    def __init__(self, recipe: str, folder: Path | None = None, sets: Sequence[str] = ()) -> None:
        self._runner = asyncio.Runner()
        plugins = Plugins.load()
        weights = [] if folder is None else [str(folder)]
        configs = configure([plugins.recipe(recipe)], sets=sets, weights=weights)
        self.service: Service = self.run(Service.launch(configs, plugins))
        app = create_app(self.service, ServerSettings())
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        self._http = httpx.AsyncClient(transport=transport, base_url="http://test", timeout=60.0)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)

    @property
    def pipeline(self) -> Pipeline:
        return next(iter(self.service.pipelines.values()))

    def close(self) -> None:
        self.run(self._http.aclose())
        self.run(self.service.close())
        self._runner.close()

    def get(self, path: str) -> Any:
        return self.run(self._http.get(path)).json()

    def post(self, **fields: Any) -> httpx.Response:
        body = {"response_format": "pcm", "sample_rate": "native", **fields}
        return self.run(self._http.post("/v1/audio/speech", json=body))

    def speak(self, **fields: Any) -> np.ndarray:
        """Samples, int32 in the range of 16 bit."""
        answer = self.post(**fields)
        assert answer.status_code == 200, answer.text
        return np.frombuffer(answer.content, "<i2").astype(np.int32)

    def refusal(self, **fields: Any) -> dict[str, Any]:
        """The error of a request that is refused with a 400."""
        answer = self.post(**fields)
        assert answer.status_code == 400, answer.content[:300]
        error: dict[str, Any] = answer.json()["error"]
        return error

    def chunks(self, requests: Sequence[SpeechRequest]) -> list[list[Any]]:
        """What the pipeline gives for requests that run at the same time."""

        async def one(request: SpeechRequest) -> list[Any]:
            async with self.pipeline.submit(request) as stream:
                return [chunk async for chunk in stream]

        async def all_of_them() -> list[list[Any]]:
            return list(await asyncio.gather(*map(one, requests)))

        return self.run(all_of_them())

    def sound(self, *requests: SpeechRequest) -> list[np.ndarray]:
        return [np.concatenate([chunk.samples for chunk in chunks]) for chunks in self.chunks(requests)]


def wav_of(samples: np.ndarray, rate: int = 24_000) -> bytes:
    """A mono WAV file of int16 samples."""
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(rate)
        out.writeframes(samples.astype("<i2").tobytes())
    return file.getvalue()


def base64_of(data: bytes) -> str:
    return base64.b64encode(data).decode()
