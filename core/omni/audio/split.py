"""Cuts long audio at quiet points, as a stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omni.audio.frames import Samples

_FRAME_SECONDS = 0.01
_PAUSE_SECONDS = 0.2
_QUIET = 1.5  # energies up to this many times the least one count as the same pause (1.8 dB)


@dataclass(frozen=True)
class AudioSpan:
    """A stretch of the input: ``samples`` begins at sample ``offset`` of it."""

    offset: int
    samples: Samples
    sample_rate: int

    @property
    def start(self) -> float:
        """Seconds from the beginning of the input."""
        return self.offset / self.sample_rate

    @property
    def end(self) -> float:
        return (self.offset + len(self.samples)) / self.sample_rate


class SilenceSplitter:
    """Spans that follow each other without gap or overlap, none longer than ``max_seconds``.

    Each cut lies in the last ``search_seconds`` before the limit (a quarter of it unless given), in the
    middle of the pause where the energy over 0.2 s is least; in equal silence everywhere that is the middle
    of the window. Cuts depend on the samples only, not on the sizes of the blocks. Memory holds one span.
    """

    def __init__(self, sample_rate: int, max_seconds: float, search_seconds: float | None = None) -> None:
        self.sample_rate = sample_rate
        self._limit = int(max_seconds * sample_rate)
        self._search = int((max_seconds / 4 if search_seconds is None else search_seconds) * sample_rate)
        self._frame = max(1, int(_FRAME_SECONDS * sample_rate))
        if not self._frame <= self._search < self._limit:
            raise ValueError(f"search_seconds must lie between {_FRAME_SECONDS} and max_seconds ({max_seconds})")
        self._offset = 0
        self._filled = 0
        self._buffer: Samples | None = None

    def push(self, block: NDArray[Any]) -> list[AudioSpan]:
        """The spans that are complete; ``block`` is ``(n,)`` or ``(n, channels)``."""
        if self._buffer is None:
            self._buffer = np.empty((self._limit, *block.shape[1:]), np.float32)
        spans = []
        taken = 0
        while taken < len(block):
            # A full buffer is cut only when a sample more is there: what fits as a whole stays whole.
            if self._filled == self._limit:
                spans.append(self._cut(self._buffer, self._quietest(self._buffer)))
            count = min(len(block) - taken, self._limit - self._filled)
            self._buffer[self._filled : self._filled + count] = block[taken : taken + count]
            self._filled += count
            taken += count
        return spans

    def finish(self) -> list[AudioSpan]:
        """The last span, if anything is left."""
        if self._buffer is None or not self._filled:
            return []
        return [self._cut(self._buffer, self._filled)]

    def _cut(self, buffer: Samples, at: int) -> AudioSpan:
        span = AudioSpan(self._offset, buffer[:at].copy(), self.sample_rate)
        rest = self._filled - at
        buffer[:rest] = buffer[at : self._filled].copy()
        self._offset += at
        self._filled = rest
        return span

    def _quietest(self, buffer: Samples) -> int:
        """Position of the cut in a full buffer, in (limit - search, limit)."""
        frames = self._search // self._frame
        first = self._limit - frames * self._frame
        window = buffer[first:].astype(np.float64).reshape(frames, -1)
        energy = np.square(window).mean(axis=1)
        width = min(frames, round(_PAUSE_SECONDS / _FRAME_SECONDS))
        smooth = np.convolve(energy, np.full(width, 1 / width), "valid")
        quiet = np.flatnonzero(smooth <= smooth.min() * _QUIET)
        runs = np.split(quiet, np.flatnonzero(np.diff(quiet) > 1) + 1)
        longest = max(runs, key=len)
        centre = (int(longest[0]) + int(longest[-1]) + width) / 2
        return first + int(centre * self._frame)
