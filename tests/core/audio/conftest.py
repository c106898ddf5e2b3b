"""Audio made in the test itself: tones from numpy, files from FFmpeg's own muxers."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable
from fractions import Fraction
from functools import cache

import av
import numpy as np
import pytest


def tone(rate: int, seconds: float, channels: int = 1, hertz: float = 440.0) -> np.ndarray:
    """A sine of amplitude 0.3; the second channel is the first one upside down and half as loud."""
    wave = (0.3 * np.sin(2 * np.pi * hertz * np.arange(int(rate * seconds)) / rate)).astype(np.float32)
    return wave if channels == 1 else np.stack([wave, -0.5 * wave], axis=1)


def mux(
    muxer: str,
    codec: str,
    samples: np.ndarray,
    rate: int,
    sample_format: str,
    seekable: bool = True,
    options: dict[str, str] | None = None,
    codec_options: dict[str, str] | None = None,
) -> bytes:
    """``samples`` in any container and codec that FFmpeg has, independent of omni's encoder."""
    channels = 1 if samples.ndim == 1 else samples.shape[1]
    layout = "mono" if channels == 1 else "stereo"
    sink = io.BytesIO()
    if not seekable:
        sink.seekable = lambda: False  # type: ignore[method-assign]
    with av.open(sink, "w", format=muxer, container_options=options or {}) as container:
        stream = container.add_stream(codec, rate=rate, options=codec_options or {})
        stream.codec_context.layout = layout
        stream.codec_context.format = sample_format
        for start in range(0, len(samples), 4000):
            block = np.ascontiguousarray(samples[start : start + 4000], np.float32)
            frame = av.AudioFrame.from_ndarray(block.reshape(1, -1), "flt", layout)
            frame.sample_rate, frame.pts, frame.time_base = rate, start, Fraction(1, rate)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return sink.getvalue()


def fast_start(m4a: bytes) -> bytes:
    """The same file with the moov box before the samples, as for the web."""
    moov, tables = m4a.index(b"moov") - 4, m4a.index(b"stco") + 8
    index = bytearray(m4a[moov:])
    (count,) = struct.unpack_from(">I", m4a, tables)
    for entry in range(tables + 4 - moov, tables + 4 - moov + 4 * count, 4):
        struct.pack_into(">I", index, entry, struct.unpack_from(">I", index, entry)[0] + len(index))
    first = struct.unpack_from(">I", m4a)[0]
    return m4a[:first] + bytes(index) + m4a[first:moov]


def wav(
    data: bytes,
    code: int = 1,
    bits: int = 16,
    channels: int = 1,
    rate: int = 16000,
    size: int | None = None,
    riff: int | None = None,
    align: int | None = None,
    extra: bytes = b"",
) -> bytes:
    """A wav file by hand; ``size`` is what its data chunk claims."""
    align = channels * bits // 8 if align is None else align
    fmt = struct.pack("<HHIIHH", code, channels, rate, rate * align & 0xFFFFFFFF, align, bits) + extra
    size = len(data) if size is None else size
    riff = min(20 + len(fmt) + len(data), 0xFFFFFFFF) if riff is None else riff
    head = struct.pack("<4sI4s4sI", b"RIFF", riff, b"WAVE", b"fmt ", len(fmt))
    return head + fmt + struct.pack("<4sI", b"data", size) + data


@cache
def valid_files() -> dict[str, bytes]:
    """One short file of each accepted container and codec, all of the same second of sound."""
    x44, x48 = tone(44100, 1), tone(48000, 1)
    frag = {"movflags": "frag_keyframe+empty_moov+default_base_moof", "frag_duration": "200000"}
    return {
        "wav": mux("wav", "pcm_s16le", x44, 44100, "s16"),
        "wav-adpcm": mux("wav", "adpcm_ms", x44, 44100, "s16"),
        "mp3": mux("mp3", "libmp3lame", x44, 44100, "fltp"),
        "m4a": mux("ipod", "aac", x44, 44100, "fltp"),
        "m4a-fast-start": fast_start(mux("ipod", "aac", x44, 44100, "fltp")),
        "m4a-fragments": mux("mp4", "aac", x44, 44100, "fltp", options=frag),
        "m4a-alac": mux("ipod", "alac", x44, 44100, "s16p"),
        "mov-pcm": mux("mov", "pcm_s16le", x44, 44100, "s16"),
        "ogg-opus": mux("ogg", "libopus", x48, 48000, "flt"),
        "ogg-vorbis": mux("ogg", "vorbis", tone(44100, 1, 2), 44100, "fltp", codec_options={"strict": "experimental"}),
        "ogg-flac": mux("ogg", "flac", x44, 44100, "s16"),
        "flac": mux("flac", "flac", x44, 44100, "s16"),
        "flac-open": mux("flac", "flac", x44, 44100, "s16", seekable=False),
        "webm": mux("webm", "libopus", x48, 48000, "flt"),
        "webm-live": mux("webm", "libopus", x48, 48000, "flt", seekable=False, options={"live": "1"}),
        "mkv-flac": mux("matroska", "flac", x44, 44100, "s16"),
        "aac": mux("adts", "aac", x44, 44100, "fltp"),
    }


def spectrum_peak(samples: np.ndarray, rate: int) -> float:
    """The loudest frequency in Hz."""
    power = np.abs(np.fft.rfft(samples * np.hanning(len(samples))))
    return float(np.argmax(power) * rate / len(samples))


def in_blocks(samples: np.ndarray, sizes: list[int]) -> list[np.ndarray]:
    """``samples`` cut into blocks whose sizes repeat in a cycle."""
    blocks, start, turn = [], 0, 0
    while start < len(samples):
        blocks.append(samples[start : start + sizes[turn % len(sizes)]])
        start += sizes[turn % len(sizes)]
        turn += 1
    return blocks


@pytest.fixture(scope="session")
def make_tone() -> Callable[..., np.ndarray]:
    return tone


@pytest.fixture(scope="session")
def make_file() -> Callable[..., bytes]:
    return mux


@pytest.fixture(scope="session")
def make_wav() -> Callable[..., bytes]:
    return wav


@pytest.fixture(scope="session")
def files() -> dict[str, bytes]:
    return valid_files()


@pytest.fixture(scope="session")
def peak_hertz() -> Callable[[np.ndarray, int], float]:
    return spectrum_peak


@pytest.fixture(scope="session")
def blocks() -> Callable[[np.ndarray, list[int]], list[np.ndarray]]:
    return in_blocks
