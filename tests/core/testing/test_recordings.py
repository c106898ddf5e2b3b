"""The clips that come with the kit."""

from __future__ import annotations

import numpy as np

from omni.audio import decode
from omni.testing import RECORDINGS, noisy_recording, recording


def test_clips_differ_and_have_silence_around() -> None:
    waves = [decode(recording(name).audio, 16_000) for name in RECORDINGS]
    assert len({wave.tobytes() for wave in waves}) == len(RECORDINGS)
    for wave in waves:
        assert 3.0 < len(wave) / 16_000 < 4.0
        assert np.abs(wave[:4000]).max() < 0.01 < np.abs(wave).max()


def test_a_noisy_clip_is_the_clip_and_noise_and_repeats() -> None:
    clean, noisy = (decode(make("garden").audio, 16_000) for make in (recording, noisy_recording))
    assert np.std(noisy - clean) > 0.04
    assert np.array_equal(noisy_recording("garden").audio, noisy_recording("garden").audio)
