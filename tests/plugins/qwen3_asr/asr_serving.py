"""The plugin behind a real server on a free port, in a thread of this process."""

from __future__ import annotations

import io
import json
import wave
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from live_server import PATIENCE, LiveServer

WEIGHTS = Path(__file__).parents[2] / "data" / "qwen3_asr" / "asr"


def wav_of(samples: np.ndarray) -> np.ndarray:
    """A 16 kHz file as uint8 whose samples are read back as they are, where they are multiples of 1/32768."""
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(16_000)
        out.writeframes(np.clip(np.rint(samples * 32768), -32768, 32767).astype("<i2").tobytes())
    return np.frombuffer(file.getvalue(), np.uint8)


class Running(LiveServer):
    """A server of one recipe."""

    def __init__(
        self, recipe: str = "qwen3-asr-0.6b", *, sets: Sequence[str] = (), weights: Path | None = WEIGHTS
    ) -> None:
        super().__init__([recipe], sets=sets, weights=[] if weights is None else [str(weights)])

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
