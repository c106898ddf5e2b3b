"""Recordings with which the conformance kit tries the recipes."""

from __future__ import annotations

from omni.testing import RECORDINGS, Effect, Samples, noisy_recording, recording

PROMPT = "she planted tomatoes and then they went away so we took the bridge"


def samples() -> Samples:
    doubtful = noisy_recording("garden")
    return Samples(
        requests=tuple(map(recording, RECORDINGS)),
        effects={
            "beam_size": Effect((1, 5, 10), doubtful),
            "prompt": Effect((None, PROMPT), doubtful),
            "temperature": Effect((0.0, 1.0), doubtful),
        },
        # A window that has begun is computed to its end: for these clips a second of a core that may be shared.
        cancel_seconds=4.0,
    )
