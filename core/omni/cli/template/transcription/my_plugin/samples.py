"""Recordings with which omni's conformance kit tries the recipe."""

from itertools import cycle

import numpy as np
from omni import TranscriptionRequest
from omni.testing import Effect, Samples, wav

SAMPLE_RATE = 16_000
MELODIES = ((0, 4, 7, 12), (12, 11, 9, 7, 5), (3, 3, 10, 3, 8))


def melody(semitones: tuple[int, ...], volumes: tuple[float, ...] = (0.3,)) -> TranscriptionRequest:
    """Notes of 0.2 s above 440 Hz with pauses between them, as an uploaded WAV file; `volumes` take turns."""
    time = np.arange(round(0.2 * SAMPLE_RATE)) / SAMPLE_RATE
    pause = np.zeros(round(0.1 * SAMPLE_RATE))
    parts = [pause]
    for semitone, volume in zip(semitones, cycle(volumes)):
        parts += [volume * np.sin(2 * np.pi * 440.0 * 2 ** (semitone / 12) * time), pause]
    return TranscriptionRequest(audio=wav(np.concatenate(parts), SAMPLE_RATE), language="en")


def samples() -> Samples:
    return Samples(
        requests=tuple(melody(notes) for notes in MELODIES),
        effects={"threshold": Effect(values=(0.01, 0.1), request=melody(MELODIES[0], (0.3, 0.05)))},
    )
