"""Short clips of English speech, with which recipes that hear can be tried.

``data/*.flac``: synthetic speech (NOTICE says whose), 16 kHz, 3.4 to 3.7 s with 0.3 s of silence around.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files

import numpy as np

from omni.audio import decode
from omni.messages import TranscriptionRequest
from omni.testing.samples import wav

RECORDINGS: Mapping[str, str] = {
    "garden": "She planted tomatoes along the garden wall.",
    "bridge": "Visitors take the bridge to the old town.",
    "trumpet": "My brother plays the trumpet every Friday.",
}
"""Names and words of the clips."""
_RATE = 16_000


def recording(name: str) -> TranscriptionRequest:
    """A request for the clip of that name."""
    file = files("omni.testing").joinpath(f"data/{name}.flac")
    return TranscriptionRequest(audio=np.frombuffer(file.read_bytes(), np.uint8))


def noisy_recording(name: str) -> TranscriptionRequest:
    """A request for the clip in noise, of which a model is not sure: there options of its search show."""
    clean = decode(recording(name).audio, _RATE)
    noise = np.random.default_rng(0).normal(0, 0.05, len(clean)).astype(np.float32)
    return TranscriptionRequest(audio=wav(clean + noise, _RATE))
