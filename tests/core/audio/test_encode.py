"""Every output format, whole and as a stream: lengths, headers, first bytes, exact 16-bit samples."""

from __future__ import annotations

import hashlib
import io
import struct

import av
import numpy as np
import pytest

from omni.audio import FORMATS, MEDIA_TYPES, StreamEncoder, decode, encode_all, encoder_rate, open_audio
from omni.errors import BadRequest, StageFailed

MUXED = ["mp3", "opus", "aac", "flac"]
SIZES = [700, 1, 333, 4000, 0, 17]


def stream(fmt, samples, rate, channels=1, sizes=(4800,), **options):
    encoder = StreamEncoder(fmt, rate, channels, **options)
    parts, start, turn = [], 0, 0
    while start < len(samples):
        size = sizes[turn % len(sizes)]
        parts.append(encoder.write(samples[start : start + size]))
        start, turn = start + size, turn + 1
    return b"".join([*parts, encoder.finish()])


def read(fmt, data, rate, channels):
    """Decoded samples at the file's own rate."""
    if fmt == "pcm":
        flat = np.frombuffer(data, "<i2").astype(np.float32) / 32768
        return flat.reshape(-1, channels) if channels > 1 else flat, rate
    with open_audio(data, mono=False) as reader:
        assert reader.source_channels == channels
        return np.concatenate(list(reader)), reader.sample_rate


def allowed_extra(fmt, whole):
    """Samples that come out beyond those that went in, as the docstring of omni.audio.encode says."""
    if fmt == "aac":
        return 1024, 2 * 1024
    if fmt == "mp3":
        return (0, 48) if whole else (1105, 1105 + 2 * 1152)
    return 0, 0


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("rate", [8000, 24000, 44100, 48000])
@pytest.mark.parametrize("channels", [1, 2])
def test_round_trip(fmt, rate, channels, make_tone, peak_hertz):
    sound = make_tone(rate, 1.01, channels)
    for whole in (False, True):
        data = encode_all(fmt, sound, rate, channels) if whole else stream(fmt, sound, rate, channels, SIZES)
        got, got_rate = read(fmt, data, rate, channels)
        assert got_rate == (48000 if fmt == "opus" else rate)
        extra = len(got) - int(len(sound) * got_rate / rate + 0.5)
        low, high = allowed_extra(fmt, whole)
        assert low <= extra <= high
        left = got if channels == 1 else got[:, 0]
        middle = left[got_rate // 4 : got_rate * 3 // 4]
        assert peak_hertz(middle, got_rate) == pytest.approx(440, abs=2.1)
        assert np.sqrt(np.mean(middle**2)) == pytest.approx(0.3 / 2**0.5, rel=0.08)
        if channels == 2:
            right = got[got_rate // 4 : got_rate * 3 // 4, 1]
            assert np.sqrt(np.mean(right**2)) == pytest.approx(0.15 / 2**0.5, rel=0.15)


@pytest.mark.parametrize("fmt", FORMATS)
def test_bytes_do_not_depend_on_the_blocks(fmt, make_tone):
    sound = make_tone(24000, 0.6)
    expected = stream(fmt, sound, 24000)
    assert stream(fmt, sound, 24000, sizes=SIZES) == expected
    assert stream(fmt, sound, 24000, sizes=[len(sound)]) == expected
    assert encode_all(fmt, sound, 24000) == encode_all(fmt, sound, 24000)


@pytest.mark.parametrize("fmt", ["pcm", "wav", "flac"])
def test_sixteen_bits_saturate_and_round_to_nearest(fmt):
    steps = np.array([0.0, 1 / 32768, 0.6 / 32768, -0.6 / 32768, 0.5, 1.0, 1.5, 1e9, -1.0, -1.5, -1e9])
    sound = np.repeat(steps, 400).astype(np.float32)
    expected = np.repeat([0, 1, 1, -1, 16384, 32767, 32767, 32767, -32768, -32768, -32768], 400)
    for data in (stream(fmt, sound, 24000), encode_all(fmt, sound, 24000)):
        got, _ = read(fmt, data, 24000, 1)
        np.testing.assert_array_equal(np.rint(got * 32768), expected)


def test_pcm_is_little_endian_and_interleaved():
    sound = np.array([[1 / 32768, -1 / 32768], [256 / 32768, 0]], np.float32)
    assert stream("pcm", sound, 24000, 2) == b"\x01\x00\xff\xff\x00\x01\x00\x00"


def test_wav_headers(make_tone):
    sound = make_tone(24000, 0.1)
    whole, live = encode_all("wav", sound, 24000), stream("wav", sound, 24000, sizes=[100])
    body = encode_all("pcm", sound, 24000)
    fmt = struct.pack("<IHHIIHH", 16, 1, 1, 24000, 48000, 2, 16)
    sizes = struct.pack("<I", 36 + len(body)), struct.pack("<I", len(body))
    assert whole == b"RIFF" + sizes[0] + b"WAVEfmt " + fmt + b"data" + sizes[1] + body
    opened = b"\xff\xff\xff\xff"
    assert live == b"RIFF" + opened + b"WAVEfmt " + fmt + b"data" + opened + body


def test_flac_header(make_tone):
    sound = make_tone(24000, 0.5)
    whole, live = encode_all("flac", sound, 24000), stream("flac", sound, 24000)
    assert int.from_bytes(whole[21:26], "big") & (1 << 36) - 1 == len(sound)
    assert whole[26:42] == hashlib.md5(encode_all("pcm", sound, 24000)).digest()
    assert int.from_bytes(live[21:26], "big") & (1 << 36) - 1 == 0
    np.testing.assert_array_equal(decode(live, 24000), decode(whole, 24000))


def test_mp3_whole_file_has_a_tag_and_the_stream_has_none(make_tone):
    sound = make_tone(24000, 0.5)
    assert b"Info" in encode_all("mp3", sound, 24000)[:200]
    live = stream("mp3", sound, 24000)
    assert live[0] == 0xFF
    assert b"Info" not in live
    assert b"Xing" not in live


@pytest.mark.parametrize("fmt", [*MUXED, "wav"])
def test_a_player_can_start_at_once(fmt, make_tone):
    """What is out after one second of sound decodes to nearly a second, with no look ahead (LiveKit's way)."""
    sound = make_tone(24000, 2)
    encoder = StreamEncoder(fmt, 24000)
    first = b"".join(encoder.write(sound[start : start + 480]) for start in range(0, 24000, 480))
    options = {"probesize": "32", "analyzeduration": "0", "fflags": "nobuffer"}
    demuxer = {"opus": "ogg", "aac": "aac"}.get(fmt, fmt)
    with av.open(io.BytesIO(first), "r", format=demuxer, container_options=options) as container:
        frames = list(container.decode(audio=0))
    assert sum(frame.samples / frame.sample_rate for frame in frames) > 0.85


@pytest.mark.parametrize(
    ("fmt", "milliseconds"), [("pcm", 20), ("wav", 20), ("flac", 60), ("opus", 40), ("aac", 150), ("mp3", 150)]
)
def test_first_bytes_come_early(fmt, milliseconds, make_tone):
    sound = make_tone(24000, 1)
    encoder = StreamEncoder(fmt, 24000)
    size, fed = 0, 0
    while not size:
        size = len(encoder.write(sound[fed : fed + 240]))
        fed += 240
    assert fed / 24 <= milliseconds


def test_encoder_rates():
    assert [encoder_rate("opus", rate) for rate in (8000, 22050, 24000, 44100, 96000)] == [
        *(8000, 24000, 24000, 48000, 48000)
    ]
    assert [encoder_rate("mp3", rate) for rate in (8000, 10000, 44100, 96000)] == [8000, 11025, 44100, 48000]
    assert [encoder_rate(fmt, 12345) for fmt in ("pcm", "wav", "flac")] == [12345] * 3


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("rate", [8001, 12345, 37800, 47999])
def test_odd_rates_are_resampled_to_what_the_codec_has(fmt, rate, make_tone, peak_hertz):
    sound = make_tone(rate, 0.5)
    got, got_rate = read(fmt, stream(fmt, sound, rate), rate, 1)
    assert got_rate == (48000 if fmt == "opus" else encoder_rate(fmt, rate))
    assert len(got) / got_rate == pytest.approx(0.5, abs=0.5 if fmt in ("mp3", "aac") else 0.001)
    assert peak_hertz(got[-got_rate // 3 : -got_rate // 12], got_rate) == pytest.approx(440, abs=5)


@pytest.mark.parametrize("fmt", ["mp3", "opus", "aac"])
def test_bit_rate(fmt):
    noise = np.random.default_rng(0).standard_normal(48000).astype(np.float32) * 0.1
    small, large = (len(encode_all(fmt, noise, 48000, bit_rate=rate)) * 8 for rate in (32_000, 96_000))
    assert 32_000 * 0.7 < small < 32_000 * 1.4
    assert 96_000 * 0.7 < large < 96_000 * 1.4
    for bad in (0, 500, 1_000_000):
        with pytest.raises(BadRequest, match="bit/s") as caught:
            StreamEncoder(fmt, 48000, bit_rate=bad)
        assert caught.value.param == "bit_rate"


@pytest.mark.parametrize("fmt", ["pcm", "wav", "flac"])
def test_no_bit_rate(fmt):
    with pytest.raises(BadRequest, match="no bit rate"):
        StreamEncoder(fmt, 24000, bit_rate=64000)


def test_unknown_format_names_those_that_are():
    for make in (lambda: StreamEncoder("m4b", 24000), lambda: encode_all("", np.zeros(1, np.float32), 24000)):
        with pytest.raises(BadRequest, match="mp3, opus, aac, flac, wav, pcm"):
            make()


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_samples_that_are_no_numbers_are_an_error(fmt, value):
    sound = np.zeros(100, np.float32)
    sound[50] = value
    with pytest.raises(StageFailed, match="NaN"):
        StreamEncoder(fmt, 24000).write(sound)
    with pytest.raises(StageFailed, match="NaN"):
        encode_all(fmt, sound, 24000)


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("count", [0, 1, 100])
def test_next_to_nothing(fmt, count):
    sound = np.full(count, 0.25, np.float32)
    for whole in (False, True):
        data = encode_all(fmt, sound, 24000) if whole else stream(fmt, sound, 24000)
        if count:
            got, _ = read(fmt, data, 24000, 1)
            assert len(got) >= count
        elif fmt == "wav":
            assert len(data) == 44


def test_misuse():
    encoder = StreamEncoder("pcm", 24000)
    encoder.finish()
    with pytest.raises(ValueError, match="finished"):
        encoder.write(np.zeros(1, np.float32))
    with pytest.raises(ValueError, match="floating"):
        StreamEncoder("pcm", 24000).write(np.zeros(1, np.int16))
    with pytest.raises(ValueError, match="shape"):
        StreamEncoder("pcm", 24000, 2).write(np.zeros(4, np.float32))
    with pytest.raises(ValueError, match="channels"):
        StreamEncoder("pcm", 24000, 3)


def test_media_types():
    assert MEDIA_TYPES == {
        "mp3": "audio/mpeg",
        "opus": "audio/ogg",
        "aac": "audio/aac",
        "flac": "audio/flac",
        "wav": "audio/wav",
        "pcm": "audio/pcm",
    }
    assert StreamEncoder("opus", 24000).media_type == "audio/ogg"
