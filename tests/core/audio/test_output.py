"""The whole chain from a model's waveform to a client's bytes."""

from __future__ import annotations

import gc
import os

import numpy as np
import pytest

from omni.audio import FORMATS, AudioOutput, decode, open_audio
from omni.errors import BadRequest


def streamed(fmt, sound, *args, size=1000, **options):
    output = AudioOutput(fmt, *args, **options)
    parts = [output.write(sound[start : start + size]) for start in range(0, len(sound), size)]
    return b"".join([*parts, output.finish()])


@pytest.mark.parametrize("speed", [0.5, 1.0, 1.7])
@pytest.mark.parametrize(("source", "target"), [(24000, 24000), (44100, 24000), (24000, 44100), (44100, 8000)])
def test_pcm_is_the_same_streamed_and_whole(source, target, speed, make_tone, peak_hertz):
    sound = make_tone(source, 1.5)
    whole = AudioOutput.whole("pcm", sound, source, target, speed=speed)
    for size in (331, 5000):
        assert streamed("pcm", sound, source, target, speed=speed, size=size) == whole
    samples = np.frombuffer(whole, "<i2") / 32768
    assert len(samples) == pytest.approx(1.5 * target / speed, abs=2)
    assert peak_hertz(samples[target // 8 : -target // 8], target) == pytest.approx(440, abs=5)


@pytest.mark.parametrize("fmt", [fmt for fmt in FORMATS if fmt != "pcm"])
@pytest.mark.parametrize("channels", [1, 2])
def test_every_format(fmt, channels, make_tone, peak_hertz):
    sound = make_tone(44100, 1, channels)
    output = AudioOutput(fmt, 44100, 24000, channels, speed=2.0)
    assert output.sample_rate == 24000
    assert output.media_type.startswith("audio/")
    for data in (
        streamed(fmt, sound, 44100, 24000, channels, speed=2.0),
        AudioOutput.whole(fmt, sound, 44100, 24000, channels, speed=2.0),
    ):
        with open_audio(data, sample_rate=24000, mono=False) as reader:
            assert reader.channels == channels
            got = np.concatenate(list(reader))
        left = got if channels == 1 else got[:, 0]
        assert len(left) / 24000 == pytest.approx(0.5, abs=0.16 if fmt in ("mp3", "aac") else 0.001)
        assert peak_hertz(left[3000:11000], 24000) == pytest.approx(440, abs=6)


def test_a_rate_that_the_format_does_not_have_is_resampled_once(make_tone):
    output = AudioOutput("opus", 24000, 44100)
    assert output.sample_rate == 48000
    data = streamed("opus", make_tone(24000, 1), 24000, 44100)
    assert len(decode(data, 48000)) == 48000


def test_bit_rate_arrives(make_tone):
    noise = np.random.default_rng(0).uniform(-0.1, 0.1, 24000).astype(np.float32)
    small, large = (len(AudioOutput.whole("mp3", noise, 24000, 24000, bit_rate=r)) for r in (32_000, 128_000))
    assert large > 2 * small
    assert len(streamed("mp3", noise, 24000, 24000, bit_rate=32_000)) == pytest.approx(small, rel=0.2)


def test_bad_requests():
    with pytest.raises(BadRequest, match="speed"):
        AudioOutput("pcm", 24000, 24000, speed=9)
    with pytest.raises(BadRequest, match="not an audio format"):
        AudioOutput("m4b", 24000, 24000)


@pytest.mark.parametrize("fmt", FORMATS)
def test_an_output_that_is_given_up_frees_its_threads(fmt):
    def threads() -> int:
        return len(os.listdir("/proc/self/task"))

    before = threads()
    gc.disable()
    try:
        for _ in range(5):
            output = AudioOutput(fmt, 24000, 24000)
            output.write(np.zeros(24000, np.float32))
            output.close()
            output.close()
            with pytest.raises(ValueError, match="finished"):
                output.write(np.zeros(1, np.float32))
        assert threads() <= before + 2
        finished = AudioOutput(fmt, 24000, 24000)
        assert finished.write(np.zeros(24000, np.float32)) + finished.finish()
        finished.close()
    finally:
        gc.enable()
