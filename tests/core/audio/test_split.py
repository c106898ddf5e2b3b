"""Cutting long audio at quiet points."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omni.audio import SilenceSplitter


def spans(sound, sizes, rate=1000, max_seconds=3.0, **options):
    splitter = SilenceSplitter(rate, max_seconds, **options)
    found, start, turn = [], 0, 0
    while start < len(sound):
        size = sizes[turn % len(sizes)]
        found += splitter.push(sound[start : start + size])
        start, turn = start + size, turn + 1
    return found + splitter.finish()


def speech(rate, seconds, pauses, floor=0.001):
    """Noise at 0.3 with near silence in the given ``(start, end)`` stretches of seconds."""
    noise = np.random.default_rng(1).uniform(-1, 1, int(rate * seconds)).astype(np.float32)
    level = np.full(len(noise), 0.3, np.float32)
    for start, end in pauses:
        level[int(start * rate) : int(end * rate)] = floor
    return noise * level


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    count=st.integers(0, 20_000),
    sizes=st.lists(st.integers(1, 9000), min_size=1, max_size=5),
    seed=st.integers(0, 5),
    channels=st.sampled_from([1, 2]),
)
def test_spans_cover_everything_once_whatever_the_blocks(count, sizes, seed, channels):
    rng = np.random.default_rng(seed)
    shape = (count,) if channels == 1 else (count, channels)
    sound = (rng.uniform(-1, 1, shape) * (rng.random(shape) > 0.5)).astype(np.float32)
    got = spans(sound, sizes)
    assert [len(span.samples) for span in got] == [len(span.samples) for span in spans(sound, [count + 1])]
    offset = 0
    for span in got:
        assert span.offset == offset
        assert span.start == offset / 1000
        assert 0 < len(span.samples) <= 3000
        offset += len(span.samples)
        assert span.end == offset / 1000
    if got:
        np.testing.assert_array_equal(np.concatenate([span.samples for span in got]), sound)
    assert offset == count


def test_cuts_lie_in_the_pauses():
    rate = 16000
    sound = speech(rate, 70, [(24.0, 24.6), (28.0, 28.3), (49.0, 49.5)], floor=0.001)
    sound[int(28.0 * rate) : int(28.3 * rate)] *= 20  # shallower than the one at 24 s
    got = spans(sound, [4096], rate, 30.0, search_seconds=8.0)
    assert [round(span.end, 1) for span in got[:2]] == [24.3, pytest.approx(49.2, abs=0.11)]


def test_a_pause_is_cut_in_its_middle():
    sound = speech(16000, 12, [(8.0, 9.0)], floor=0.0)
    assert spans(sound, [1600], 16000, 10.0)[0].end == pytest.approx(8.5, abs=0.06)


def test_what_fits_stays_whole():
    sound = speech(1000, 3.0, [(2.5, 2.6)])
    assert len(spans(sound, [100])) == 1
    assert len(spans(np.append(sound, np.float32(0.1)), [100])) == 2


def test_no_pause_at_all_is_cut_in_the_window():
    sound = np.ones(10_000, np.float32)
    got = spans(sound, [777], search_seconds=1.0)
    assert all(2000 <= len(span.samples) <= 3000 for span in got[:-1])


def test_nothing_gives_nothing():
    assert SilenceSplitter(16000, 30).finish() == []
    assert spans(np.zeros(0, np.float32), [1]) == []


def test_a_splitter_holds_one_span_and_copies_what_it_gives():
    sound = np.zeros(10_000, np.float32)
    splitter = SilenceSplitter(1000, 3.0)
    first = splitter.push(sound)
    assert len(first) >= 3
    assert splitter._buffer is not None
    assert len(splitter._buffer) == 3000
    assert not any(np.shares_memory(span.samples, sound) for span in first)


def test_an_hour_is_fast():
    sound = np.tile(speech(16000, 60, [(20, 20.5), (40, 40.4)]), 60)
    start = time.thread_time()
    got = spans(sound, [65536], 16000, 30.0)
    assert time.thread_time() - start < 5
    assert sum(len(span.samples) for span in got) == len(sound)


@pytest.mark.parametrize("search", [0.0, 3.0, 5.0])
def test_impossible_windows(search):
    with pytest.raises(ValueError, match="search_seconds"):
        SilenceSplitter(1000, 3.0, search)
