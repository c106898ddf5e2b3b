"""Files that are accepted: what comes out of every container, codec and header variant."""

from __future__ import annotations

import mmap
import struct
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

from omni.audio import decode, open_audio
from omni.errors import BadRequest

# Samples after the sound that the format cannot, or FFmpeg does not, take away again: at 44.1 and 48 kHz.
EXTRA = {
    "wav-adpcm": 2 * 2036,
    "m4a": 1024,
    "m4a-fast-start": 1024,
    "m4a-fragments": 2 * 1024,
    "ogg-vorbis": 1024,
    "aac": 2 * 1024,
}
CODECS = {
    "wav": "pcm_s16le",
    "wav-adpcm": "adpcm_ms",
    "mp3": "mp3float",
    "m4a": "aac",
    "m4a-fast-start": "aac",
    "m4a-fragments": "aac",
    "m4a-alac": "alac",
    "mov-pcm": "pcm_s16le",
    "ogg-opus": "opus",
    "ogg-vorbis": "vorbis",
    "ogg-flac": "flac",
    "flac": "flac",
    "flac-open": "flac",
    "webm": "opus",
    "webm-live": "opus",
    "mkv-flac": "flac",
    "aac": "aac",
}
LOSSLESS = ["wav", "m4a-alac", "mov-pcm", "ogg-flac", "flac", "flac-open", "mkv-flac"]


@pytest.mark.parametrize("name", CODECS)
def test_every_container(name, files, peak_hertz):
    with open_audio(files[name]) as reader:
        samples = np.concatenate(list(reader))
        assert reader.codec == CODECS[name]
        assert reader.container in (name.split("-")[0], "mp4", "webm")
        assert reader.source_channels == (2 if name == "ogg-vorbis" else 1)
        rate = reader.sample_rate
        assert reader.duration_hint is None or reader.duration_hint == pytest.approx(1.0, abs=0.06)
    assert samples.dtype == np.float32
    assert 0 <= len(samples) - rate <= EXTRA.get(name, 0)
    assert peak_hertz(samples[: rate - 2000], rate) == pytest.approx(440, abs=1.5)


@pytest.mark.parametrize("name", LOSSLESS)
def test_lossless_is_exact(name, files, make_tone):
    expected = np.rint(make_tone(44100, 1) * 32768) / 32768
    np.testing.assert_allclose(decode(files[name], 44100), expected, atol=1.1 / 32768)


@pytest.mark.parametrize(
    ("code", "bits", "make"),
    [
        (1, 8, lambda x: (x * 128 + 128).astype("u1")),
        (1, 16, lambda x: (x * 2**15).astype("<i2")),
        (1, 24, lambda x: (x * 2**23).astype("<i4").view("u1").reshape(-1, 4)[:, :3]),
        (1, 32, lambda x: (x * (2**31 - 1)).astype("<i4")),
        (3, 32, lambda x: x.astype("<f4")),
        (3, 64, lambda x: x.astype("<f8")),
    ],
)
@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("extensible", [False, True])
def test_wav_pcm(code, bits, make, channels, extensible, make_tone, make_wav):
    sound = make_tone(16000, 0.25, channels).astype(np.float64)
    extra = b""
    if extensible:
        guid = struct.pack("<H", code) + bytes.fromhex("000000001000800000aa00389b71")
        extra = struct.pack("<HHI", 22, bits, (1 << channels) - 1) + guid
    data = make(sound.reshape(-1)).tobytes()
    file = make_wav(data, 0xFFFE if extensible else code, bits, channels, extra=extra)
    with open_audio(file, mono=False) as reader:
        got = np.concatenate(list(reader))
    assert got.shape == sound.shape
    assert np.abs(got - sound).max() < 1.01 / 2 ** (min(bits, 24) - 1)


@pytest.mark.parametrize(("code", "codec"), [(6, "pcm_alaw"), (7, "pcm_mulaw")])
def test_wav_telephone(code, codec, make_file, make_tone):
    sound = make_tone(8000, 0.5)
    with open_audio(make_file("wav", codec, sound, 8000, "s16")) as reader:
        assert reader.codec == codec
        got = np.concatenate(list(reader))
    assert np.abs(got - sound).max() < 0.02


def test_wav_ima_adpcm_and_rf64(make_file, make_tone):
    sound = make_tone(16000, 0.5)
    adpcm = decode(make_file("wav", "adpcm_ima_wav", sound, 16000, "s16p"), 16000)
    assert np.abs(adpcm[500 : len(sound)] - sound[500:]).max() < 0.05  # it adapts slowly at first
    rf64 = make_file("wav", "pcm_s16le", sound, 16000, "s16", options={"rf64": "always"})
    assert rf64[:4] == b"RF64"
    assert np.abs(decode(rf64, 16000) - sound).max() < 1 / 32768
    with pytest.raises(BadRequest, match="promises"):
        decode(rf64[:-100], 16000)


@pytest.mark.parametrize("size", [0, 0x7FFFF000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF])
def test_wav_of_open_length_is_read_to_the_end(size, make_tone, make_wav):
    sound = make_tone(16000, 1)
    data = (sound * 32768).astype("<i2").tobytes()
    for riff in (0, 36, 0x7FFFFFFF, 0xFFFFFFFF):
        assert len(decode(make_wav(data, size=size, riff=riff), 16000)) == 16000
    # A recording that was cut inside of a sample loses only that half.
    assert len(decode(make_wav(data[:-1], size=size, riff=0xFFFFFFFF), 16000)) == 15999


def test_wav_chunks_around_the_samples(make_tone, make_wav):
    data = (make_tone(16000, 0.1) * 32768).astype("<i2").tobytes()
    plain = make_wav(data)
    extra = b"LIST" + struct.pack("<I", 5) + b"hello\0"
    assert len(decode(plain[:12] + extra + plain[12:] + extra, 16000)) == 1600
    # Size zero that the RIFF size agrees with is an empty recording, not an open one.
    empty = make_wav(b"", riff=36 + len(extra)) + extra
    with pytest.raises(BadRequest, match="no audio samples"):
        decode(empty, 16000)


def _id3(size: int) -> bytes:
    return b"ID3\4\0\0" + bytes([size >> 21 & 127, size >> 14 & 127, size >> 7 & 127, size & 127]) + bytes(size)


def _ape(body: bytes) -> bytes:
    head = struct.pack("<8sIII", b"APETAGEX", 2000, len(body) + 32, 1)
    return head + struct.pack("<I8x", 0xA0000000) + body + head + struct.pack("<I8x", 0x80000000)


@pytest.mark.parametrize("name", ["mp3", "aac"])
def test_tags_around_and_between_frames(name, files):
    file = files[name]
    length = len(decode(file, 44100))
    id3v1 = b"TAG" + bytes(125)
    for before, after in [
        (_id3(3000), b""),
        (_id3(50) + _id3(20) + bytes(100), b""),
        (b"", id3v1),
        (b"", _ape(b"x" * 300) + id3v1),
        (b"", b"LYRICSBEGIN" + b"y" * 80 + b"000091LYRICS200"),
    ]:
        assert len(decode(before + file + after, 44100)) == length
    # Padding makes FFmpeg doubt the length in the tag: it keeps the encoder's silence at the end.
    assert length <= len(decode(file + bytes(5000), 44100)) <= length + 1152
    # Files that were joined byte by byte, each with its tags.
    joined = _id3(100) + file + id3v1 + _id3(100) + file
    assert len(decode(joined, 44100)) >= 2 * length
    assert len(decode(file + file, 44100)) >= 2 * length


def test_stereo_becomes_mono_by_averaging(make_file, make_tone):
    stereo = make_tone(44100, 0.5, 2)
    file = make_file("flac", "flac", stereo, 44100, "s16")
    np.testing.assert_allclose(decode(file, 44100), stereo.mean(axis=1), atol=1 / 32768)
    both = decode(file, 44100, mono=False)
    assert both.shape == stereo.shape
    np.testing.assert_allclose(both, stereo, atol=1 / 32768)


def test_audio_track_of_a_video(make_tone):
    import io

    import av

    sink, sound = io.BytesIO(), make_tone(44100, 1)
    with av.open(sink, "w", format="mp4") as container:
        video = container.add_stream("mpeg4", rate=10, width=64, height=64)
        audio = container.add_stream("aac", rate=44100, layout="mono")
        for index in range(10):
            picture = av.VideoFrame.from_ndarray(np.full((64, 64, 3), index * 20, np.uint8), "rgb24")
            container.mux(video.encode(picture))
        frame = av.AudioFrame.from_ndarray(sound.reshape(1, -1), "flt", "mono")
        frame.sample_rate, frame.pts, frame.time_base = 44100, 0, Fraction(1, 44100)
        container.mux(audio.encode(frame))
        container.mux([*video.encode(None), *audio.encode(None)])
    assert len(decode(sink.getvalue(), 44100)) == pytest.approx(44100, abs=1024)


def test_webm_of_a_browser_with_clusters_of_unknown_size(files):
    file = bytearray(files["webm-live"])
    at, clusters = file.find(b"\x1f\x43\xb6\x75"), 0
    while at >= 0:
        length = 9 - file[at + 4].bit_length()
        file[at + 4 : at + 4 + length] = (2 ** (7 * length + 1) - 1).to_bytes(length, "big")
        at, clusters = file.find(b"\x1f\x43\xb6\x75", at + 4), clusters + 1
    assert clusters
    assert len(decode(bytes(file), 48000)) == 48000
    with pytest.raises(BadRequest, match="cut off"):
        decode(bytes(file[:-1]), 48000)


def test_a_reader_may_move_between_threads(make_wav):
    """As under an asyncio executor: each block is fetched by another thread, one of them long at work."""

    def busy() -> None:
        end = time.thread_time() + 0.3
        while time.thread_time() < end:
            pass

    with patch("omni.audio.memory._STEP_SECONDS", 0.2), ThreadPoolExecutor(1) as pool:
        pool.submit(busy).result()
        with open_audio(make_wav(bytes(2 * 16000 * 30))) as reader:
            blocks = iter(reader)
            total = len(next(blocks)) + sum(len(pool.submit(next, blocks).result()) for _ in range(6))
            total += sum(map(len, blocks))
    assert total == 16000 * 30


@pytest.mark.parametrize("rate", [8000, 16000, 24000, 48000])
def test_resampled_while_decoding(rate, files, make_tone, peak_hertz):
    got = decode(files["flac"], rate)
    assert len(got) == rate
    assert peak_hertz(got, rate) == pytest.approx(440, abs=1)
    assert np.sqrt(np.mean(got**2)) == pytest.approx(0.3 / 2**0.5, rel=0.01)


def test_blocks_are_bounded_and_join_to_the_whole(make_file, make_tone):
    file = make_file("wav", "pcm_s16le", make_tone(48000, 10), 48000, "s16")
    with open_audio(file, sample_rate=16000) as reader:
        blocks = list(reader)
    assert max(map(len, blocks)) < 30000
    np.testing.assert_array_equal(np.concatenate(blocks), decode(file, 16000))


@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview, lambda b: np.frombuffer(b, np.uint8)])
def test_any_bytes(wrap, files):
    assert len(decode(wrap(files["wav"]), 44100)) == 44100


def test_a_large_mmap_is_neither_copied_nor_kept_open(tmp_path: Path, make_wav):
    path = tmp_path / "long.wav"
    path.write_bytes(make_wav(bytes(20_000_000)))
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        tracemalloc.start()
        with open_audio(data) as reader:
            total = sum(map(len, reader))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        with pytest.raises(BadRequest):
            decode(memoryview(data)[:-2_000], 16000)
    # mmap.__exit__ raises BufferError while a view of it is alive.
    assert total == 10_000_000
    assert peak < 5_000_000


def test_a_reader_is_read_once(files):
    with open_audio(files["wav"]) as reader:
        list(reader)
        with pytest.raises(ValueError, match="once"):
            list(reader)


def test_max_seconds(files):
    assert len(decode(files["wav"], 44100, max_seconds=1.0)) == 44100
    for name in files:
        with pytest.raises(BadRequest, match=r"limit of 0\.9 s") as caught:
            decode(files[name], 16000, max_seconds=0.9, param="audio")
        assert caught.value.param == "audio"
        assert caught.value.code == "audio_too_long"


def test_max_seconds_is_found_without_decoding_the_rest(make_wav):
    file = memoryview(make_wav(bytes(2 * 16000 * 600)))
    blocks = []
    with open_audio(file, max_seconds=20) as reader, pytest.raises(BadRequest, match="limit of 20 s"):
        blocks.extend(reader)
    assert sum(map(len, blocks)) <= 20 * 16000


def test_telephone_sound_in_a_mov_has_a_sample_a_byte(make_file, make_tone):
    sound = make_tone(8000, 2)
    assert np.abs(decode(make_file("mov", "pcm_mulaw", sound, 8000, "s16"), 8000) - sound).max() < 0.02
