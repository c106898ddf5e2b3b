"""Sample-rate conversion, the same for every part: soxr, high quality."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from omni.audio.frames import Samples, as_samples


class Resampler:
    """Converts a stream of blocks from one rate to another.

    All blocks together give exactly the samples that one call with all of the input gives, whatever the
    block sizes: ``floor(n * dst_rate / src_rate + 0.5)`` of them for ``n``. Output lags by up to 40 ms at
    speech rates (the filter looks ahead) and is complete after ``last=True``. Equal rates pass through
    without a copy.
    """

    def __init__(self, src_rate: int, dst_rate: int, channels: int = 1) -> None:
        self.src_rate, self.dst_rate, self.channels = src_rate, dst_rate, channels
        self._stream = None
        if src_rate != dst_rate:
            import soxr

            self._stream = soxr.ResampleStream(src_rate, dst_rate, channels, dtype="float32", quality="HQ")

    def process(self, samples: NDArray[Any], last: bool = False) -> Samples:
        """The next output samples; ``last`` flushes, after which nothing may follow."""
        block = as_samples(samples, self.channels)
        if self._stream is None:
            return block
        return as_samples(self._stream.resample_chunk(block, last=last), self.channels)


def resample(samples: NDArray[Any], src_rate: int, dst_rate: int, channels: int = 1) -> Samples:
    """The whole of ``samples`` at another rate."""
    return Resampler(src_rate, dst_rate, channels).process(samples, last=True)
