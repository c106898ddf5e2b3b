"""Time stretching as a stream."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omni.audio import TimeStretch
from omni.errors import BadRequest

SPEEDS = [0.25, 0.3, 0.5, 0.77, 1.25, 1.999, 2.0, 3.0, 4.0]


def stretched(sound, speed, rate, sizes, channels=1):
    stretch = TimeStretch(speed, rate, channels)
    parts, start, turn = [], 0, 0
    while start < len(sound):
        size = sizes[turn % len(sizes)]
        parts.append(stretch.process(sound[start : start + size]))
        start, turn = start + size, turn + 1
    return np.concatenate([*parts, stretch.process(sound[:0], last=True)])


@pytest.mark.parametrize("speed", SPEEDS)
@pytest.mark.parametrize("rate", [8000, 24000, 44100])
def test_length_is_exact_and_pitch_stays(speed, rate, make_tone, peak_hertz):
    sound = make_tone(rate, 2.017)
    got = TimeStretch(speed, rate).process(sound, last=True)
    assert len(got) == math.floor(len(sound) / speed + 0.5)
    middle = got[len(got) // 8 : -len(got) // 8]
    assert peak_hertz(middle, rate) == pytest.approx(440, abs=6)
    assert np.sqrt(np.mean(middle**2)) == pytest.approx(0.3 / 2**0.5, rel=0.1)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    speed=st.sampled_from(SPEEDS),
    rate=st.sampled_from([8000, 24000]),
    count=st.integers(0, 12000),
    sizes=st.lists(st.integers(1, 4000), min_size=1, max_size=4),
    channels=st.sampled_from([1, 2]),
)
def test_streamed_is_whole(speed, rate, count, sizes, channels):
    rng = np.random.default_rng(count)
    sound = rng.uniform(-0.5, 0.5, count if channels == 1 else (count, channels)).astype(np.float32)
    whole = TimeStretch(speed, rate, channels).process(sound, last=True)
    assert len(whole) == math.floor(count / speed + 0.5)
    np.testing.assert_array_equal(stretched(sound, speed, rate, sizes, channels), whole)


@pytest.mark.parametrize("speed", SPEEDS)
def test_sounds_keep_their_place(speed):
    """Bursts of noise begin and end where they should, within the stated tolerance."""
    rate = 24000
    time = np.arange(6 * rate) / rate
    on = (time % 1.0 > 0.3) & (time % 1.0 < 0.7)
    sound = (np.random.default_rng(0).uniform(-0.4, 0.4, len(time)) * on).astype(np.float32)
    got = TimeStretch(speed, rate).process(sound, last=True)
    loud = np.convolve(np.abs(got), np.full(rate // 200, 200 / rate), "same") > 0.05
    edges = np.flatnonzero(np.diff(loud.astype(int)))
    for second in range(6):
        for edge in (second + 0.3, second + 0.7):
            assert np.abs(edges / rate - edge / speed).min() < (0.12 if speed < 0.5 else 0.06)


def test_most_of_it_comes_out_before_the_end(make_tone):
    stretch = TimeStretch(1.5, 24000)
    early = sum(len(stretch.process(block)) for block in np.split(make_tone(24000, 2), 100))
    assert early > 0.9 * 48000 / 1.5


def test_speed_one_does_not_copy():
    sound = np.zeros(100, np.float32)
    assert np.shares_memory(TimeStretch(1.0, 24000).process(sound), sound)


@pytest.mark.parametrize("speed", [0.0, 0.2, 4.1, -1.0, math.nan, math.inf])
def test_speeds_out_of_range(speed):
    with pytest.raises(BadRequest, match=r"between 0\.25 and 4") as caught:
        TimeStretch(speed, 24000)
    assert caught.value.param == "speed"
