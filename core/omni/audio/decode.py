"""Untrusted bytes -> samples: FFmpeg behind an allow-list, one stream of float32 blocks.

The container is found from the first bytes, its demuxer is forced by name and reads from memory only: no
file name, no protocol, no reference to another file is ever followed. Codecs are on a list of their own.

What is refused, always as :class:`BadRequest` and never by a shorter result: a file whose structure breaks
or ends early (:mod:`omni.audio.containers`), a packet that does not decode, a wav or flac whose header
promises more than is there, samples that are not numbers, no samples at all. A wav header that leaves the
length open (zero, or 0x7FFFF000 and more) is read to the end of the file. Encoder delay and padding are cut
where the file states them and FFmpeg honours it: LAME tag, Opus pre-skip, edit list (start only).

Memory is bounded by the block in flight and, for MP4, FFmpeg's index of at most 2**24 samples: never by what a
header claims. Work is bounded by processor time from one packet to the next, and by Python's steps: nothing that
grows with the file holds the interpreter.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing, contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from omni.audio.containers import ACCEPTED, Container, recognise
from omni.audio.frames import Samples, from_frames
from omni.audio.memory import Budget, MemoryFile
from omni.audio.resample import Resampler
from omni.audio.walks import Damaged
from omni.errors import BadRequest

if TYPE_CHECKING:
    import av
    from av.container import InputContainer

MAX_SECONDS = 4 * 3600.0
MAX_CHANNELS = 8
MIN_RATE, MAX_RATE = 4000, 192_000

_BLOCK = 1 << 16  # samples that are collected before a block is given out
_MAX_FRAME = 1 << 18  # samples of one packet: a lossless packet can claim millions in a few bytes
_MAX_PEAK = 100.0

_CODECS = {
    *("aac", "alac", "flac", "opus", "vorbis", "adpcm_ms", "adpcm_ima_wav"),
    *("mp3", "mp3float", "mp2", "mp2float", "mp1", "mp1float"),
    *("pcm_alaw", "pcm_mulaw", "pcm_u8", "pcm_s8"),
    *(f"pcm_{kind}{end}" for kind in ("s16", "s24", "s32", "f32", "f64") for end in ("le", "be")),
}
_CONTAINER_OPTIONS = {
    "protocol_whitelist": "-",
    "enable_drefs": "0",
    # Decoders open only after the codec was checked, none while the streams are being looked at.
    "codec_whitelist": "-",
    "max_streams": "32",
    "probesize": "65536",
}
_DECODER_OPTIONS = {
    "err_detect": "crccheck+bitstream+buffer+explode",
    "max_samples": str(_MAX_FRAME),
}


def _no_other_file(url: str, flags: int, options: dict[str, str]) -> Any:
    raise PermissionError("a file that refers to another one")


class AudioReader:
    """An opened file: iterate once for blocks of float32, ``(n,)`` for one channel, else ``(n, channels)``.

    ``container`` and ``codec`` name what was recognised, ``source_rate`` and ``source_channels`` what is
    in the file, ``sample_rate`` and ``channels`` what comes out. ``duration_hint`` is the header's word in
    seconds, None where it has none; only iterating tells the truth. Close it, or use it as a context manager.

    Raises:
        BadRequest: also while iterating, see the module.
    """

    def __init__(
        self,
        container: Container,
        view: memoryview,
        *,
        sample_rate: int | None,
        mono: bool,
        max_seconds: float | None,
        param: str,
    ) -> None:
        self.container, self._numbered = container.name, container.numbered
        self._param, self._max_seconds, self._mono = param, max_seconds, mono
        self._seen, self._rate = 0, 1  # samples that were decoded; their rate, once it is known
        self._budget = Budget()
        self._walked = 0
        with ExitStack() as cleanup:
            with self._typed_errors():
                self._view, self._promised = container.prepare(view, self._budget)
                cleanup.callback(self._view.release)
                self._walk = container.walk(self._view)
                self._file = cleanup.enter_context(self._open(container.demuxer))
                self._select_stream()
            # The first frame is decoded here: a file that is bad from the start is refused before any
            # output, and only a decoder knows the real rate and channels of some kinds of AAC.
            self._frames = cleanup.enter_context(closing(self._decode()))
            self._first = next(self._frames, None)
            if self._first is None:
                raise self._refuse("holds no audio samples")
            self._cleanup = cleanup.pop_all()
        self.source_rate, self.source_channels = self._first.sample_rate, self._first.layout.nb_channels
        self.channels = 1 if mono else self.source_channels
        self.sample_rate = sample_rate or self.source_rate
        self._resampler = Resampler(self.source_rate, self.sample_rate, self.channels)

    def __iter__(self) -> Iterator[Samples]:
        first, self._first = self._first, None
        if first is None:
            raise ValueError("an AudioReader can be read once")
        held, count = [first], first.samples
        for frame in self._frames:
            if count >= _BLOCK:
                yield self._resampler.process(self._block(held))
                held, count = [], 0
            held.append(frame)
            count += frame.samples
        yield self._resampler.process(self._block(held), last=True)

    def close(self) -> None:
        """Lets go of the file and of the caller's bytes."""
        self._cleanup.close()

    def __enter__(self) -> AudioReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open(self, demuxer: str) -> InputContainer:
        import av

        return av.open(
            MemoryFile(self._view, self._budget),
            "r",
            format=demuxer,
            container_options=_CONTAINER_OPTIONS,
            metadata_errors="replace",
            buffer_size=1 << 16,
            io_open=_no_other_file,
        )

    def _select_stream(self) -> None:
        if not self._file.streams.audio:
            raise self._refuse("holds no audio stream")
        self._stream = self._file.streams.audio[0]
        decoder = self._stream.codec_context
        self.codec = decoder.name if decoder is not None else "unknown"
        if self.codec not in _CODECS:
            raise self._refuse(f"holds audio in a codec that is not accepted ({self.codec})")
        self._check_shape(decoder.sample_rate, decoder.channels)
        decoder.thread_count = 1
        decoder.options = _DECODER_OPTIONS
        duration = self._file.duration
        self.duration_hint = duration / 1e6 if duration is not None and duration > 0 else None

    def _decode(self) -> Generator[av.AudioFrame, None, None]:
        """Every frame of the file, checked. The file is walked in step with its packets."""
        with self._typed_errors():
            first = None
            for packet in self._file.demux(self._stream):
                self._check_packet(packet)
                if self.container in ("mp3", "aac") and packet.size and not any(bytes(packet)):
                    continue  # padding at the end, as the walk has seen
                for frame in packet.decode():
                    first = first or frame
                    self._check_frame(frame, first)
                    yield frame
                self._budget.renew()
            self._walk_to_the_end()
            if self._promised is not None and self._seen < self._promised:
                raise Damaged(f"its header promises {self._promised} samples, {self._seen} are there")

    def _check_packet(self, packet: av.Packet[Any]) -> None:
        self._walk_to((packet.pos or 0) + packet.size)
        lost = self._numbered and packet.pts is not None and packet.pts * packet.time_base * self._rate != self._seen
        # A wav whose length is open ends in the middle of what its header claims, which is checked before.
        incomplete = packet.is_corrupt and self.container != "wav"
        if incomplete or lost:
            raise Damaged(f"audio is missing after {self._seconds:.2f} s")

    @property
    def _seconds(self) -> float:
        return self._seen / self._rate

    def _walk_to(self, offset: int) -> None:
        while self._walked < min(offset, len(self._view)):
            self._budget.check()
            self._walked = next(self._walk, len(self._view))

    def _walk_to_the_end(self) -> None:
        for offset in self._walk:
            self._budget.check()
            self._walked = offset

    def _check_shape(self, rate: int, channels: int) -> None:
        # Zero: the header does not say, the first frame will.
        if rate and not MIN_RATE <= rate <= MAX_RATE:
            raise self._refuse(f"has a sample rate of {rate} Hz; {MIN_RATE} to {MAX_RATE} Hz are accepted")
        if channels > MAX_CHANNELS:
            raise self._refuse(f"has {channels} channels; up to {MAX_CHANNELS} are accepted")

    def _check_frame(self, frame: av.AudioFrame, first: av.AudioFrame) -> None:
        shape = (frame.sample_rate, frame.layout.nb_channels, frame.format.name)
        if frame is first:
            self._check_shape(*shape[:2])
            self._rate = frame.sample_rate
        elif shape != (first.sample_rate, first.layout.nb_channels, first.format.name):
            raise self._refuse("changes its sample rate or its channels in the middle, which is not accepted")
        if frame.is_corrupt:
            raise Damaged(f"it does not decode after {self._seconds:.2f} s")
        self._seen += frame.samples
        if self._max_seconds is not None and self._seconds > self._max_seconds:
            raise self._refuse(f"is longer than the limit of {self._max_seconds:g} s", code="audio_too_long")

    def _block(self, frames: list[av.AudioFrame]) -> Samples:
        block = from_frames(frames)
        peak = float(np.abs(block).max(initial=0.0))
        if not math.isfinite(peak):
            raise self._refuse("holds samples that are not numbers (NaN or infinity)")
        if peak > _MAX_PEAK:
            raise self._refuse(f"holds samples up to {peak:.3g}; floating-point audio lies between -1 and 1")
        if not self._mono:
            return block if self.channels > 1 else block[:, 0]
        mixed = block[:, 0].copy()
        for channel in range(1, self.source_channels):
            mixed += block[:, channel]
        return mixed / np.float32(self.source_channels)

    def _refuse(self, why: str, code: str | None = None) -> BadRequest:
        return BadRequest(f"the audio file (recognised as {self.container}) {why}", param=self._param, code=code)

    @contextmanager
    def _typed_errors(self) -> Iterator[None]:
        from av.error import FFmpegError

        try:
            yield
        except Damaged as error:
            raise self._refuse(f"is damaged: {error}", code="damaged_audio") from error
        except (FFmpegError, PermissionError) as error:
            # The structure of the file says more than FFmpeg's "Invalid data found".
            why = f"it does not decode after {self._seconds:.2f} s ({getattr(error, 'strerror', error)})"
            try:
                self._walk_to_the_end()
            except Damaged as damage:
                why = str(damage)
            raise self._refuse(f"is damaged: {why}", code="damaged_audio") from error


def open_audio(
    data: Any,
    *,
    sample_rate: int | None = None,
    mono: bool = True,
    max_seconds: float | None = MAX_SECONDS,
    param: str = "file",
) -> AudioReader:
    """Recognises ``data`` (bytes, memoryview, mmap or uint8 array; not copied) and starts to decode it.

    ``sample_rate`` converts (None: as in the file), ``mono`` averages the channels, ``max_seconds`` bounds
    the length, ``param`` is the request field that errors name.

    Raises:
        BadRequest: see the module.
    """
    view = memoryview(data).cast("B").toreadonly()
    try:
        if not len(view):
            raise BadRequest("the audio file is empty", param=param)
        container = recognise(view)
        if container is None:
            why = f"the file is not recognised as audio; accepted are {ACCEPTED}"
            raise BadRequest(why, param=param, code="unsupported_format")
        return AudioReader(container, view, sample_rate=sample_rate, mono=mono, max_seconds=max_seconds, param=param)
    except BaseException:
        # The traceback holds the view, which would keep the caller from closing an mmap.
        view.release()
        raise


def decode(
    data: Any,
    sample_rate: int,
    *,
    mono: bool = True,
    max_seconds: float | None = MAX_SECONDS,
    param: str = "file",
) -> Samples:
    """The whole of ``data`` at ``sample_rate`` as one array; the rest as :func:`open_audio`."""
    with open_audio(data, sample_rate=sample_rate, mono=mono, max_seconds=max_seconds, param=param) as reader:
        samples = np.concatenate(list(reader))
    if not len(samples):
        raise BadRequest("the audio file is shorter than one sample", param=param)
    return samples
