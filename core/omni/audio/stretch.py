"""Faster and slower speech at the same pitch: FFmpeg's ``atempo`` (WSOLA) as a stream."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from omni.audio.frames import Samples, as_samples, from_frames, silence, to_frame
from omni.errors import BadRequest

if TYPE_CHECKING:
    import av.filter

MIN_SPEED, MAX_SPEED = 0.25, 4.0

# One atempo outside of this range skips or repeats whole stretches: two in a row overlap-add instead.
_ONE_FILTER = (0.5, 2.0)


class TimeStretch:
    """Plays a stream of blocks ``speed`` times as fast without a change of pitch.

    ``n`` samples become exactly ``floor(n / speed + 0.5)``; all blocks together give the same samples
    whatever the block sizes. What is heard at a time in the output lies at most 0.12 s (below half speed,
    else 0.06 s) from ``time * speed`` in the input. Speed 1 passes through without a copy.

    Raises:
        BadRequest: ``speed`` outside of 0.25 to 4.
    """

    def __init__(self, speed: float, sample_rate: int, channels: int = 1) -> None:
        if not MIN_SPEED <= speed <= MAX_SPEED:
            raise BadRequest(f"speed must be between {MIN_SPEED} and {MAX_SPEED}, not {speed}", param="speed")
        if channels not in (1, 2):
            raise ValueError(f"one or two channels, not {channels}")
        self.speed, self.sample_rate, self.channels = speed, sample_rate, channels
        # atempo's output depends in its last bits on the sizes of its input frames: they are always equal.
        self._block = max(1, sample_rate // 50)
        self._pending = silence(0, channels)
        self._taken = self._pushed = self._given = 0
        self._graph = None if speed == 1.0 else self._open()

    def _open(self) -> av.filter.Graph:
        from av.filter import Graph

        low, high = _ONE_FILTER
        tempos = [self.speed] if low <= self.speed <= high else [math.sqrt(self.speed)] * 2
        graph = Graph()
        graph.threads = 1
        layout = "mono" if self.channels == 1 else "stereo"
        source = graph.add_abuffer(sample_rate=self.sample_rate, format="flt", layout=layout)
        graph.link_nodes(
            source, *(graph.add("atempo", repr(tempo)) for tempo in tempos), graph.add("abuffersink")
        ).configure()
        return graph

    def process(self, samples: NDArray[Any], last: bool = False) -> Samples:
        """The next output samples; ``last`` flushes, after which nothing may follow."""
        block = as_samples(samples, self.channels)
        if self._graph is None:
            return block
        pending = np.concatenate([self._pending, block])
        self._taken += len(block)
        wanted = math.floor(self._taken / self.speed + 0.5)
        if last:
            # Silence pushes the last words through the search windows and is cut off again by `wanted`.
            pending = np.concatenate([pending, silence(self._tail(len(pending)), self.channels)])
        whole = len(pending) - len(pending) % self._block
        self._pending = pending[whole:].copy()
        out = [silence(0, self.channels)]
        for start in range(0, whole, self._block):
            out.extend(self._step(self._graph, pending[start : start + self._block]))
        made = np.concatenate(out)
        if last:
            made = made[: wanted - self._given]
            made = np.concatenate([made, silence(wanted - self._given - len(made), self.channels)])
        self._given += len(made)
        return made

    def _tail(self, pending: int) -> int:
        """Samples that fill ``pending`` up to a block and then half a second more: over four windows."""
        return -pending % self._block + 25 * self._block

    def _step(self, graph: av.filter.Graph, block: Samples) -> list[Samples]:
        from av.error import BlockingIOError as NotYet

        graph.push(to_frame(block, self.channels, self.sample_rate, self._pushed))
        self._pushed += len(block)
        out: list[Samples] = []
        while True:
            try:
                frame = cast("av.AudioFrame", graph.pull())
            except NotYet:
                return out
            out.append(as_samples(from_frames([frame]), self.channels))
