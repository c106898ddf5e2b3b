"""Recordings with which the conformance kit tries the recipes.

``data/*.flac`` (16 kHz, 3.4 to 3.7 s) was spoken by hibari-tts 0.2.1 (Apache-2.0) with seed 0; 0.3 s of silence around.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import msgspec
import numpy as np

from omni import TranscriptionRequest
from omni.audio import decode
from omni.testing import Effect, Samples, tone, wav
from qwen3_asr.features import SAMPLE_RATE

CLIPS = ("garden", "bridge", "trumpet")
LONG = 200.0
"""Seconds of the long recording: more than the longest span."""
TOKENS = 12
"""Random weights never end by themselves."""


def clip(name: str) -> TranscriptionRequest:
    return TranscriptionRequest(
        audio=np.frombuffer(files("qwen3_asr").joinpath(f"data/{name}.flac").read_bytes(), np.uint8)
    )


def hard_to_hear(name: str) -> TranscriptionRequest:
    """A clip in noise, of which the model is not sure."""
    clean = decode(clip(name).audio, SAMPLE_RATE)
    noise = np.random.default_rng(0).normal(0, 0.05, len(clean)).astype(np.float32)
    return TranscriptionRequest(audio=wav(clean + noise, SAMPLE_RATE))


def samples() -> Samples:
    """For trained weights."""
    doubtful = hard_to_hear(CLIPS[0])
    return Samples(
        requests=tuple(clip(name) for name in CLIPS),
        effects={
            "prompt": Effect((None, "She planted tomahtoes; gardin, gardins."), doubtful),
            "temperature": Effect((0.0, 1.0), doubtful),
            "seed": Effect((7, 8, 9), msgspec.structs.replace(doubtful, temperature=1.0)),
            "max_new_tokens": Effect((6, 100)),
        },
        time_tolerance=0.08,
        long_seconds=LONG,
        # A span whose prompt is under way is computed to the end of that pass.
        cancel_seconds=10.0,
    )


def timed_noise() -> Samples:
    """For random weights with a random aligner."""
    return noise(times=True)


def noise(*, times: bool = False) -> Samples:
    """For random weights, which write letters at random: the same ones for the same sound. ``times``: there is an
    aligner, with random weights as well."""

    def request(number: int, **fields: Any) -> TranscriptionRequest:
        quiet = np.zeros(8000, np.float32)
        sound = np.concatenate([quiet, tone(1.0 + 0.5 * number, 120.0 + 60 * number), quiet])
        return TranscriptionRequest(audio=wav(sound, SAMPLE_RATE), params={"max_new_tokens": TOKENS}, **fields)

    return Samples(
        requests=tuple(request(i) for i in range(4)),
        effects={
            "seed": Effect((7, 8, 9), request(0, temperature=1.0)),
            "max_new_tokens": Effect((3, TOKENS, 40)),
        },
        skip={
            "audio_is_never_shortened": "random weights write no words that could be found again",
            **({"times_are_absolute": "a random aligner puts words where nobody speaks"} if times else {}),
        },
        long_seconds=LONG,
    )
