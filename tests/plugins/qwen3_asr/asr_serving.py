"""The plugin behind a real server on a free port, in a thread of this process."""

from __future__ import annotations

import asyncio
import io
import json
import threading
import wave
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from omni.config import configure
from omni.pipeline import Pipeline
from omni.plugins import Plugins
from omni.server.app import create_app
from omni.server.run import Server, bind
from omni.server.settings import ServerSettings
from omni.service import Service

WEIGHTS = Path(__file__).parents[2] / "data" / "qwen3_asr" / "asr"
PATIENCE = 60.0


def wav_of(samples: np.ndarray) -> np.ndarray:
    """A 16 kHz file as uint8 whose samples are read back as they are, where they are multiples of 1/32768."""
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(16_000)
        out.writeframes(np.clip(np.rint(samples * 32768), -32768, 32767).astype("<i2").tobytes())
    return np.frombuffer(file.getvalue(), np.uint8)


class Running:
    """A server of one recipe; ``sets`` and ``weights`` as on the command line."""

    def __init__(
        self, recipe: str = "qwen3-asr-0.6b", *, sets: Sequence[str] = (), weights: Path | None = WEIGHTS
    ) -> None:
        plugins = Plugins.load()
        given = [] if weights is None else [str(weights)]
        configs = configure([plugins.recipe(recipe)], sets=sets, weights=given)

        async def load() -> Service:
            return await Service.launch(configs, plugins)

        sock = bind("127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{sock.getsockname()[1]}"
        self.app = create_app(load, ServerSettings())
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

    def post(self, samples: np.ndarray | bytes, **fields: Any) -> httpx.Response:
        """POST a 16 kHz wav of ``samples`` to the transcriptions endpoint."""
        file = samples if isinstance(samples, bytes) else wav_of(samples).tobytes()
        form = {name: value if isinstance(value, str | list) else json.dumps(value) for name, value in fields.items()}
        url = self.url + "/v1/audio/transcriptions"
        return httpx.post(url, data=form, files={"file": ("clip.wav", file)}, timeout=PATIENCE)

    def transcribe(self, samples: np.ndarray, **fields: Any) -> Any:
        """The body of a successful answer."""
        answer = self.post(samples, **fields)
        assert answer.status_code == 200, answer.text
        return answer.json() if answer.headers["content-type"].startswith("application/json") else answer.text

    def events(self, samples: np.ndarray, **fields: Any) -> list[dict[str, Any]]:
        """The events of a streamed answer."""
        answer = self.post(samples, stream="true", **fields)
        assert answer.status_code == 200, answer.text
        return [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]


def deltas(events: Sequence[dict[str, Any]]) -> list[str]:
    return [event["delta"] for event in events if event["type"] == "transcript.text.delta"]
