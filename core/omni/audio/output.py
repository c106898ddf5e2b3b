"""From a model's waveform to bytes for a client: stretch -> resample -> encode."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from omni.audio.encode import MEDIA_TYPES, StreamEncoder, encode_all, encoder_rate
from omni.audio.resample import Resampler
from omni.audio.stretch import TimeStretch


class AudioOutput:
    """A stream of float blocks at ``source_rate`` becomes a stream of bytes at ``target_rate``.

    ``speed`` stretches time and keeps the pitch. A rate that the format does not have becomes the next one
    above it (``sample_rate`` says which).

    Raises:
        BadRequest: unknown format, a bit rate that it does not have, a speed out of range.
        StageFailed: (``write``) samples that are not finite.
    """

    def __init__(
        self,
        fmt: str,
        source_rate: int,
        target_rate: int,
        channels: int = 1,
        *,
        speed: float = 1.0,
        bit_rate: int | None = None,
    ) -> None:
        self.media_type = MEDIA_TYPES.get(fmt, "")
        self.sample_rate = encoder_rate(fmt, target_rate)
        self.channels = channels
        self._stretch = TimeStretch(speed, source_rate, channels)
        self._resampler = Resampler(source_rate, self.sample_rate, channels)
        self._encoder = StreamEncoder(fmt, self.sample_rate, channels, bit_rate=bit_rate)

    def write(self, samples: NDArray[Any]) -> bytes:
        """The bytes that are ready; ``samples`` is float, ``(n,)`` or ``(n, channels)``."""
        return self._encoder.write(self._resampler.process(self._stretch.process(samples)))

    def finish(self) -> bytes:
        """The last bytes. Nothing can be written after."""
        nothing = np.zeros((0, self.channels), np.float32)
        tail = self._resampler.process(self._stretch.process(nothing, last=True), last=True)
        return self._encoder.write(tail) + self._encoder.finish()

    def close(self) -> None:
        """Free the codec of an output that is given up. Not needed after ``finish``, idempotent."""
        self._encoder.close()

    @staticmethod
    def whole(
        fmt: str,
        samples: NDArray[Any],
        source_rate: int,
        target_rate: int,
        channels: int = 1,
        *,
        speed: float = 1.0,
        bit_rate: int | None = None,
    ) -> bytes:
        """One complete file with lengths in its header; the same samples as the stream gives."""
        rate = encoder_rate(fmt, target_rate)
        stretched = TimeStretch(speed, source_rate, channels).process(samples, last=True)
        resampled = Resampler(source_rate, rate, channels).process(stretched, last=True)
        return encode_all(fmt, resampled, rate, channels, bit_rate=bit_rate)
