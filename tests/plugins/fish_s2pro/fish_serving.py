"""The plugin behind a real server on a free port, in a thread of this process."""

from __future__ import annotations

import base64
import io
import re
import time
import wave
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from live_server import PATIENCE, LiveServer

CKPT = Path(__file__).parents[2] / "data" / "fish_s2pro" / "ckpt"
FRAME = 2048


class Running(LiveServer):
    def __init__(
        self, recipes: Sequence[str] = ("fish-s2-pro",), *, weights: Sequence[str] = (str(CKPT),), **more: Any
    ) -> None:
        super().__init__(recipes, weights=weights, **more)

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
