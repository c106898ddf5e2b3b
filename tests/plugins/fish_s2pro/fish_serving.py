"""The plugin behind a real server on a free port, in a thread of this process."""

from __future__ import annotations

import asyncio
import base64
import io
import re
import threading
import time
import wave
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from omni.config import configure
from omni.pipeline import Pipeline
from omni.plugins import Plugins
from omni.server.app import create_app
from omni.server.openai_names import model_aliases
from omni.server.run import Server, bind
from omni.server.settings import ServerSettings
from omni.service import Service

CKPT = Path(__file__).parents[2] / "data" / "fish_s2pro" / "ckpt"
PATIENCE = 60.0
FRAME = 2048


class Running:
    """A server of recipes of installed plugins; ``sets`` and ``weights`` as on the command line."""

    def __init__(
        self,
        recipes: Sequence[str] = ("fish-s2-pro",),
        *,
        sets: Sequence[str] = (),
        weights: Sequence[str] = (str(CKPT),),
        **settings: Any,
    ) -> None:
        plugins = Plugins.load()
        options = ServerSettings(**settings)
        configs = configure([plugins.recipe(name) for name in recipes], sets=sets, weights=weights)

        async def load() -> Service:
            return await Service.launch(configs, plugins, aliases=model_aliases(options))

        sock = bind("127.0.0.1", 0)
        self.port = sock.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.app = create_app(load, options)
        self._ready = threading.Event()
        self._server = Server(self.app, self._ready.set)
        self._loop: asyncio.AbstractEventLoop

        def run() -> None:
            with asyncio.Runner(loop_factory=self._server.config.get_loop_factory()) as runner:
                self._loop = runner.get_loop()
                runner.run(self._server.serve(sockets=[sock]))
            self._ready.set()

        self._thread = threading.Thread(target=run)
        self._thread.start()
        assert self._ready.wait(PATIENCE)
        if (error := self.app.state.runtime.error) is not None:
            self._thread.join(PATIENCE)
            raise error

    def stop(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._server.stop)
            self._thread.join(PATIENCE)
        assert not self._thread.is_alive()

    @property
    def pipeline(self) -> Pipeline:
        return next(iter(self.app.state.runtime.service.pipelines.values()))

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=PATIENCE)

    def metric(self, name: str, **labels: str) -> float:
        """The sum of all samples of a metric that have these labels."""
        total = 0.0
        for line in httpx.get(self.url + "/metrics", timeout=PATIENCE).text.splitlines():
            if match := re.fullmatch(r"(\w+)(?:\{(.*)\})? (\S+)", line):
                found = dict(re.findall(r'(\w+)="([^"]*)"', match[2] or ""))
                if match[1] == name and labels.items() <= found.items():
                    total += float(match[3])
        return total

    def speak(self, **fields: Any) -> np.ndarray:
        """The samples of ``POST /v1/audio/speech``, int16 at the model's rate."""
        body = {"response_format": "pcm", "sample_rate": "native", **fields}
        answer = httpx.post(self.url + "/v1/audio/speech", json=body, timeout=PATIENCE)
        assert answer.status_code == 200, answer.text
        return samples_of(answer.content)


def eventually(check: Callable[[], Any]) -> Any:
    """Wait until ``check`` is true; what it gave last."""
    end = time.monotonic() + PATIENCE
    while not (result := check()) and time.monotonic() < end:
        time.sleep(0.01)
    return result


def samples_of(pcm: bytes) -> np.ndarray:
    return np.frombuffer(pcm, "<i2").astype(np.int32)


def wav_of(samples: np.ndarray, rate: int = 44100) -> bytes:
    """A 16-bit mono WAV file."""
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(rate)
        out.writeframes(np.clip(np.rint(samples * 32768), -32768, 32767).astype("<i2").tobytes())
    return file.getvalue()


def base64_of(data: bytes) -> str:
    return base64.b64encode(data).decode()


def voice(seconds: float = 0.4, pitch: float = 140.0) -> bytes:
    """A made-up voice, as a file."""
    at = np.arange(round(seconds * 44100)) / 44100
    return wav_of(0.3 * sum(np.sin(2 * np.pi * pitch * k * at) / k for k in range(1, 8)))
