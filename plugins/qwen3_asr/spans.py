"""Long audio in spans that end at quiet points, as the reference cuts it, but as a stream."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omni.audio import AudioSpan

Samples = NDArray[np.float32]
QUIET_SECONDS = 0.1


class QuietSplitter:
    """Spans that follow each other without gap or overlap. What is longer than ``max_seconds`` is cut up to
    ``search_seconds`` before or after that: where the mean magnitude over 0.1 s is least, at its smallest sample.

    Memory holds one span. Cuts depend on the samples alone, not on the sizes of the blocks.
    """

    def __init__(self, sample_rate: int, max_seconds: float, search_seconds: float) -> None:
        self.sample_rate = sample_rate
        self._limit = int(max_seconds * sample_rate)
        self._search = int(search_seconds * sample_rate)
        self._quiet = max(1, int(QUIET_SECONDS * sample_rate))
        self._blocks: list[Samples] = []
        self._held = 0
        self._offset = 0

    def push(self, block: NDArray[Any]) -> Iterator[AudioSpan]:
        """The spans that are complete; ``block`` is ``(n,)``."""
        self._blocks.append(np.asarray(block, np.float32))
        self._held += len(block)
        # The cut looks no further than this, and a sample more shows that there has to be one.
        while self._held > self._limit + self._search:
            yield self._cut(self._quietest(self._joined()))

    def finish(self) -> Iterator[AudioSpan]:
        """The spans that are left."""
        while self._held > self._limit:
            yield self._cut(self._quietest(self._joined()))
        if self._held:
            yield self._cut(self._held)

    def _joined(self) -> Samples:
        if len(self._blocks) > 1:
            self._blocks = [np.concatenate(self._blocks)]
        return self._blocks[0]

    def _cut(self, at: int) -> AudioSpan:
        held = self._joined()
        span = AudioSpan(self._offset, held[:at].copy(), self.sample_rate)
        self._blocks = [held[at:]]
        self._held -= at
        self._offset += at
        return span

    def _quietest(self, held: Samples) -> int:
        """Where to cut, at least 1."""
        first = max(0, self._limit - self._search)
        window = np.abs(held[first : self._limit + self._search])
        if len(window) <= self._quiet:
            return self._limit
        sums = np.concatenate(([0.0], np.cumsum(window, dtype=np.float64)))
        start = int(np.argmin(sums[self._quiet :] - sums[: -self._quiet]))
        inside = int(np.argmin(window[start : start + self._quiet]))
        return max(1, first + start + inside)
