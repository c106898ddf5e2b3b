"""Samples -> bytes of a file or stream: mp3, opus (Ogg), aac (ADTS), flac, wav and raw pcm.

Length after decoding, for ``n`` samples at the encoder's rate:

======  =====================================================================================
pcm     ``n``
wav     ``n``
flac    ``n``
opus    ``n`` (pre-skip and the last granule position tell the decoder what to cut)
mp3     whole file: ``n``, with FFmpeg's decoder now and then up to 48 more (LAME tag);
        stream: 1105 samples of delay before, up to two frames after
aac     1024 samples of delay before, filled up to a frame of 1024 after; ADTS cannot tell the decoder
======  =====================================================================================

A stream has no tag in mp3, no length and no checksum in flac's header and sizes of 0xFFFFFFFF in wav's.
Where 16-bit samples are written (pcm, wav, flac) they are ``clip(rint(x * 32768), -32768, 32767)``:
nearest, ties to even, saturating, no dither.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from omni.audio.frames import to_frame
from omni.audio.resample import Resampler
from omni.errors import BadRequest, StageFailed

if TYPE_CHECKING:
    from av.audio import AudioStream

# Opus in Ogg is audio/ogg (RFC 7845); audio/opus names RTP payloads, and players do not know it as a file.
MEDIA_TYPES = {
    "mp3": "audio/mpeg",
    "opus": "audio/ogg",
    "aac": "audio/aac",
    "flac": "audio/flac",
    "wav": "audio/wav",
    "pcm": "audio/pcm",
}
FORMATS = tuple(MEDIA_TYPES)

_OPEN = 0xFFFFFFFF  # the size field of a wav whose length is not known yet


@dataclass(frozen=True)
class _Codec:
    """How FFmpeg makes one format; ``rates`` are what the encoder takes, ascending (empty: any)."""

    muxer: str
    encoder: str
    sample_format: str
    rates: tuple[int, ...] = ()
    bit_rate: Callable[[int, int], int] | None = None
    bit_rates: tuple[int, int] = (0, 0)
    stream_muxer: dict[str, str] = field(default_factory=dict)
    stream_encoder: dict[str, str] = field(default_factory=dict)


def _mp3_bit_rate(rate: int, channels: int) -> int:
    # MPEG 2.5 (up to 12 kHz) ends at 64 kbit/s, MPEG 2 (up to 24 kHz) at 160.
    return 64_000 if rate <= 12_000 else 96_000 if rate <= 24_000 else 128_000


_CODECS = {
    "mp3": _Codec(
        "mp3",
        "libmp3lame",
        "fltp",
        rates=(8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000),
        bit_rate=_mp3_bit_rate,
        bit_rates=(8_000, 320_000),
        stream_muxer={"write_xing": "0", "id3v2_version": "0"},
    ),
    "opus": _Codec(
        "ogg",
        "libopus",
        "flt",
        rates=(8000, 12000, 16000, 24000, 48000),
        bit_rate=lambda rate, channels: 32_000 + 32_000 * channels,
        bit_rates=(6_000, 256_000),
        # One packet of 20 ms a page: 28 bytes each, for sound that starts and moves on at once.
        stream_muxer={"page_duration": "20000"},
    ),
    "aac": _Codec(
        "adts",
        "aac",
        "fltp",
        rates=(8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000),
        bit_rate=lambda rate, channels: 64_000 + 32_000 * channels if rate > 24_000 else 48_000 * channels,
        bit_rates=(8_000, 320_000),
    ),
    "flac": _Codec(
        "flac",
        "flac",
        "s16",
        # Level 0 has blocks of 27 ms; higher levels wait four times as long and save a few percent.
        stream_encoder={"compression_level": "0"},
        stream_muxer={"metadata_header_padding": "0"},
    ),
}


def encoder_rate(fmt: str, sample_rate: int) -> int:
    """The rate that ``fmt`` is encoded at when ``sample_rate`` is asked for: it, or the next one above.

    Raises:
        BadRequest: unknown format.
    """
    _check_format(fmt)
    rates = _CODECS[fmt].rates if fmt in _CODECS else ()
    return next((rate for rate in rates if rate >= sample_rate), rates[-1]) if rates else sample_rate


class StreamEncoder:
    """Encodes a stream of float blocks; every ``write`` gives the bytes that are ready.

    The bytes of all writes and of ``finish`` are one valid stream that plays from its first byte on.
    ``bit_rate`` (bit/s) is for mp3, opus and aac, which take the nearest they have at the rate; None is a
    good one for speech. Without a sample there is no byte either, but the header of wav and flac.

    Raises:
        BadRequest: unknown format, or a bit rate that the format does not have.
        StageFailed: (``write``) samples that are not finite.
    """

    def __init__(self, fmt: str, sample_rate: int, channels: int = 1, *, bit_rate: int | None = None) -> None:
        if channels not in (1, 2):
            raise ValueError(f"one or two channels, not {channels}")
        self.format = fmt
        self.channels = channels
        self.sample_rate = encoder_rate(fmt, sample_rate)
        self.media_type = MEDIA_TYPES[fmt]
        self._resampler = Resampler(sample_rate, self.sample_rate, channels)
        self._encoder = _open(fmt, self.sample_rate, channels, bit_rate, _Pipe())
        self._finished = False

    def write(self, samples: NDArray[Any]) -> bytes:
        """Bytes that became ready; ``samples`` is float, ``(n,)`` or ``(n, channels)``."""
        self._check_open()
        return self._encoder.write(_finite(self._resampler.process(samples)))

    def finish(self) -> bytes:
        """The last bytes. Nothing can be written after."""
        self._check_open()
        self._finished = True
        empty = np.zeros((0, self.channels), np.float32)
        tail = self._encoder.write(self._resampler.process(empty, last=True))
        return tail + self._encoder.finish()

    def close(self) -> None:
        """Free the codec, which has threads; what was not finished is lost. Not needed after ``finish``."""
        self._finished = True
        self._encoder.close()

    def _check_open(self) -> None:
        if self._finished:
            raise ValueError("the encoder is finished")


def encode_all(
    fmt: str, samples: NDArray[Any], sample_rate: int, channels: int = 1, *, bit_rate: int | None = None
) -> bytes:
    """One complete file, with lengths (wav, flac with MD5) and gapless tag (mp3) in its header.

    Raises:
        BadRequest: unknown format, or a bit rate that the format does not have.
        StageFailed: samples that are not finite.
    """
    rate = encoder_rate(fmt, sample_rate)
    block = _finite(Resampler(sample_rate, rate, channels).process(samples, last=True))
    if fmt == "wav":
        body = _to_int16(block).tobytes()
        return _wav_header(rate, channels, len(body)) + body
    sink = io.BytesIO()
    encoder = _open(fmt, rate, channels, bit_rate, sink)
    head = encoder.write(block) + encoder.finish()
    return head or sink.getvalue()


def _check_format(fmt: str) -> None:
    if fmt not in MEDIA_TYPES:
        raise BadRequest(f"{fmt!r} is not an audio format; it is one of {', '.join(FORMATS)}", param="response_format")


def _finite(samples: NDArray[np.float32]) -> NDArray[np.float32]:
    if not np.isfinite(samples).all():
        raise StageFailed("the model gave samples that are not numbers (NaN or infinity)")
    return samples


def _to_int16(samples: NDArray[np.float32]) -> NDArray[np.int16]:
    scaled = samples * np.float32(32768)
    np.rint(scaled, out=scaled)
    np.minimum(scaled, np.float32(32767), out=scaled)
    np.maximum(scaled, np.float32(-32768), out=scaled)
    return scaled.astype(np.int16)


def _wav_header(rate: int, channels: int, size: int | None) -> bytes:
    """44 bytes: 16-bit PCM of ``size`` bytes, or of a length that is not known."""
    align = 2 * channels
    fmt = struct.pack("<HHIIHH", 1, channels, rate, rate * align, align, 16)
    riff, data = (_OPEN, _OPEN) if size is None else (36 + size, size)
    if data > _OPEN - 36 and size is not None:
        raise BadRequest("a wav file ends at 4 GiB; ask for another format")
    return struct.pack("<4sI4s4sI", b"RIFF", riff, b"WAVE", b"fmt ", 16) + fmt + struct.pack("<4sI", b"data", data)


class _Pcm:
    """Raw little-endian 16-bit samples behind an optional header."""

    def __init__(self, header: bytes) -> None:
        self._header = header

    def write(self, samples: NDArray[np.float32]) -> bytes:
        if not len(samples):
            return b""
        body = _to_int16(samples).tobytes()
        if self._header:
            body, self._header = self._header + body, b""
        return body

    def finish(self) -> bytes:
        header, self._header = self._header, b""
        return header

    def close(self) -> None:
        pass


class _Pipe:
    """What FFmpeg writes to, without a way back; ``take`` empties it."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def write(self, data: bytes) -> int:
        self._parts.append(data)
        return len(data)

    def take(self) -> bytes:
        data = b"".join(self._parts)
        self._parts.clear()
        return data


class _Muxed:
    """An FFmpeg encoder and muxer that writes into ``sink``."""

    def __init__(self, codec: _Codec, rate: int, channels: int, bit_rate: int | None, sink: _Pipe | io.BytesIO) -> None:
        import av

        muxer, encoder = (codec.stream_muxer, codec.stream_encoder) if isinstance(sink, _Pipe) else ({}, {})
        self._pipe = sink if isinstance(sink, _Pipe) else _Pipe()
        self._rate, self._channels, self._codec = rate, channels, codec
        # bitexact: the same samples give the same bytes (no random serial number, no version in tags).
        options = muxer | {"flush_packets": "1", "fflags": "+bitexact"}
        self._container = av.open(sink, "w", format=codec.muxer, container_options=options)
        stream = self._container.add_stream(codec.encoder, rate=rate, options=encoder)
        self._stream = cast("AudioStream", stream)
        context = self._stream.codec_context
        context.layout = "mono" if channels == 1 else "stereo"
        context.format = codec.sample_format
        context.thread_count = 1
        if codec.bit_rate is not None:
            context.bit_rate = bit_rate or codec.bit_rate(rate, channels)
        self._written = 0

    def write(self, samples: NDArray[np.float32]) -> bytes:
        if len(samples):
            # The 16-bit samples are ours, so that flac holds exactly what wav does.
            data = _to_int16(samples) if self._codec.sample_format == "s16" else samples
            frame = to_frame(data, self._channels, self._rate, self._written)
            self._written += len(samples)
            self._container.mux(self._stream.encode(frame))
        return self._pipe.take()

    def finish(self) -> bytes:
        self._container.mux(self._stream.encode(None))
        self._container.close()
        return self._pipe.take()

    def close(self) -> None:
        # An open container is part of a reference cycle, which the collector finds late.
        self._container.close()
        self._pipe.take()


def _open(fmt: str, rate: int, channels: int, bit_rate: int | None, sink: _Pipe | io.BytesIO) -> _Pcm | _Muxed:
    codec = _CODECS.get(fmt)
    if bit_rate is not None:
        low, high = codec.bit_rates if codec is not None else (0, 0)
        if not high:
            raise BadRequest(f"{fmt} has no bit rate", param="bit_rate")
        if not low <= bit_rate <= high:
            raise BadRequest(f"the bit rate of {fmt} is {low} to {high} bit/s, not {bit_rate}", param="bit_rate")
    if codec is None:
        return _Pcm(_wav_header(rate, channels, None) if fmt == "wav" else b"")
    return _Muxed(codec, rate, channels, bit_rate, sink)
