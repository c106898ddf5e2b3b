"""Sample-rate conversion as a stream."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omni.audio import Resampler, resample

RATES = [8000, 11025, 16000, 22050, 24000, 32000, 44100, 48000, 12345]


def streamed(samples, src, dst, sizes, channels=1):
    resampler = Resampler(src, dst, channels)
    parts, start, turn = [], 0, 0
    while start < len(samples):
        size = sizes[turn % len(sizes)]
        parts.append(resampler.process(samples[start : start + size]))
        start, turn = start + size, turn + 1
    return np.concatenate([*parts, resampler.process(samples[:0], last=True)])


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    src=st.sampled_from(RATES),
    dst=st.sampled_from(RATES),
    count=st.integers(0, 6000),
    sizes=st.lists(st.integers(1, 3000), min_size=1, max_size=5),
    channels=st.sampled_from([1, 2]),
)
def test_streamed_is_whole_and_length_is_exact(src, dst, count, sizes, channels):
    rng = np.random.default_rng(count)
    sound = rng.uniform(-0.5, 0.5, count if channels == 1 else (count, channels)).astype(np.float32)
    whole = resample(sound, src, dst, channels)
    assert len(whole) == math.floor(count * dst / src + 0.5)
    assert whole.dtype == np.float32
    assert whole.shape[1:] == sound.shape[1:]
    np.testing.assert_array_equal(streamed(sound, src, dst, sizes, channels), whole)


def test_a_tone_stays_and_what_cannot_be_heard_goes(make_tone, peak_hertz):
    got = resample(make_tone(44100, 1), 44100, 24000)
    assert peak_hertz(got, 24000) == pytest.approx(440, abs=1)
    np.testing.assert_allclose(got[1000:-1000], make_tone(24000, 1)[1000:-1000], atol=1e-4)
    above = resample(make_tone(44100, 1, hertz=15000), 44100, 24000)
    assert np.abs(above[1000:-1000]).max() < 1e-3


def test_equal_rates_do_not_copy():
    sound = np.zeros(100, np.float32)
    assert np.shares_memory(Resampler(24000, 24000).process(sound), sound)


def test_channels_do_not_mix(make_tone):
    stereo = make_tone(24000, 0.5, 2)
    both = resample(stereo, 24000, 16000, 2)
    np.testing.assert_allclose(both[:, 0], resample(stereo[:, 0], 24000, 16000), atol=1e-6)


def test_output_lags_little():
    resampler = Resampler(44100, 24000)
    given_out = len(resampler.process(np.zeros(4410, np.float32)))
    assert given_out >= 24000 * 0.06


def test_wrong_shapes_are_refused():
    with pytest.raises(ValueError, match="shape"):
        Resampler(8000, 16000, 2).process(np.zeros(10, np.float32))
    with pytest.raises(ValueError, match="floating"):
        Resampler(8000, 16000).process(np.zeros(10, np.int16))
