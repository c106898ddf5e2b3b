"""Float arrays and FFmpeg's audio frames: the shapes that all of :mod:`omni.audio` shares.

Audio is float32 in [-1, 1]: ``(samples,)`` for one channel, ``(samples, channels)`` for more.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import av

Samples: TypeAlias = NDArray[np.float32]

_FULL_SCALE = {np.dtype(np.int16): 1 / 2**15, np.dtype(np.int32): 1 / 2**31}


def as_samples(samples: NDArray[Any], channels: int) -> Samples:
    """``samples`` as contiguous float32 of the shape that ``channels`` calls for; no copy where it fits.

    Raises:
        ValueError: integers, or a shape other than ``(n,)``, ``(n, channels)``.
    """
    if samples.dtype.kind != "f":
        raise ValueError(f"audio must be floating point, not {samples.dtype}")
    shape = (-1,) if channels == 1 else (-1, channels)
    if samples.ndim not in (1, 2) or (samples.shape[1] if samples.ndim == 2 else 1) != channels:
        raise ValueError(f"audio of {channels} channel(s) cannot have the shape {samples.shape}")
    return np.ascontiguousarray(samples, np.float32).reshape(shape)


def silence(count: int, channels: int) -> Samples:
    return np.zeros(count if channels == 1 else (count, channels), np.float32)


def to_frame(samples: NDArray[Any], channels: int, sample_rate: int, pts: int) -> av.AudioFrame:
    """An FFmpeg frame of interleaved float32 or int16; ``pts`` counts samples from the start."""
    import av

    kind = "s16" if samples.dtype == np.int16 else "flt"
    frame = av.AudioFrame.from_ndarray(samples.reshape(1, -1), kind, "mono" if channels == 1 else "stereo")
    frame.sample_rate = sample_rate
    frame.time_base = Fraction(1, sample_rate)
    frame.pts = pts
    return frame


def from_frames(frames: list[av.AudioFrame]) -> Samples:
    """All of ``frames``, which share format and layout, as one float32 array ``(samples, channels)``."""
    first = frames[0]
    arrays = [frame.to_ndarray() for frame in frames]
    if first.format.is_planar:
        joined = np.concatenate(arrays, axis=1).T
    else:
        joined = np.concatenate(arrays, axis=1).reshape(-1, first.layout.nb_channels)
    if joined.dtype == np.uint8:
        return (joined.astype(np.float32) - 128.0) / 128.0
    scale = _FULL_SCALE.get(joined.dtype)
    if scale is not None:
        return joined.astype(np.float32) * np.float32(scale)
    # A double beyond float32's range becomes infinite here, which the reader refuses.
    with np.errstate(over="ignore"):
        return joined.astype(np.float32, copy=False)
