"""Recordings with which the conformance kit tries the recipes.

``data/*.flac`` (16 kHz, 3.4 to 3.7 s) was spoken by hibari-tts 0.2.1 (Apache-2.0) with seed 0; 0.3 s of silence around.
"""

from __future__ import annotations

from importlib.resources import files

import numpy as np

from omni import TranscriptionRequest
from omni.audio import decode
from omni.testing import Effect, Samples, wav
from whisper_asr import SAMPLE_RATE

CLIPS = ("garden", "bridge", "trumpet")
PROMPT = "she planted tomatoes and then they went away so we took the bridge"


def clip(name: str) -> TranscriptionRequest:
    return TranscriptionRequest(
        audio=np.frombuffer(files("whisper_asr").joinpath(f"data/{name}.flac").read_bytes(), np.uint8)
    )


def hard_to_hear(name: str) -> TranscriptionRequest:
    """A clip in noise, of which the model is not sure."""
    clean = decode(clip(name).audio, SAMPLE_RATE)
    noise = np.random.default_rng(0).normal(0, 0.05, len(clean)).astype(np.float32)
    return TranscriptionRequest(audio=wav(clean + noise, SAMPLE_RATE))


def samples() -> Samples:
    doubtful = hard_to_hear(CLIPS[0])
    return Samples(
        requests=tuple(clip(name) for name in CLIPS),
        effects={
            "beam_size": Effect((1, 5, 10), doubtful),
            "prompt": Effect((None, PROMPT), doubtful),
            "temperature": Effect((0.0, 1.0), doubtful),
        },
        # A window that has begun is computed to its end: for these clips a second of a core that may be shared.
        cancel_seconds=4.0,
    )
