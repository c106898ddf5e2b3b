"""Recordings with which the conformance kit tries the recipes."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from omni import TranscriptionRequest
from omni.testing import RECORDINGS, Effect, Samples, noisy_recording, recording, tone, wav
from qwen3_asr.features import SAMPLE_RATE

LONG = 200.0
"""Seconds of the long recording: more than the longest span."""
TOKENS = 12
"""Random weights never end by themselves."""


def samples() -> Samples:
    """For trained weights."""
    doubtful = noisy_recording("garden")
    return Samples(
        requests=tuple(map(recording, RECORDINGS)),
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
