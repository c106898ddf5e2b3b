"""What FFmpeg reads from: bytes in memory, with a bound on the work that they can cause."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import TypeAlias

from omni.audio.walks import Damaged

_STEP_SECONDS = 5.0  # processor time from one packet to the next; honest files take microseconds
_CHECKS = 16  # reading the clock costs more than a step of most loops


class Budget:
    """Bounds the work before the first packet and between two: a file can hold millions of empty elements.

    Every loop whose length a file decides calls ``check`` at each step.
    """

    def __init__(self) -> None:
        self._count = 0
        self.renew()

    def renew(self) -> None:
        self._end = time.thread_time() + _STEP_SECONDS

    def check(self) -> None:
        """Raises :class:`Damaged` when the time is used up."""
        self._count += 1
        if not self._count % _CHECKS and time.thread_time() > self._end:
            raise Damaged(f"it holds next to no audio (none found in {_STEP_SECONDS:g} s)")


class Joined:
    """Pieces of a view one after another, without a copy: its length and its slices, which are bytes."""

    def __init__(self, view: memoryview, pieces: Sequence[tuple[int, int]]) -> None:
        self._view = view
        self._starts = [start for start, _ in pieces]
        self._ends = list(accumulate(end - start for start, end in pieces))

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, part: slice) -> bytes:
        position, stop, _ = part.indices(len(self))
        found = []
        while position < stop:
            index = bisect_right(self._ends, position)
            end = min(stop, self._ends[index])
            start = self._starts[index] + position - (self._ends[index - 1] if index else 0)
            found.append(bytes(self._view[start : start + end - position]))
            position = end
        return b"".join(found)

    def release(self) -> None:
        self._view.release()


View: TypeAlias = memoryview | Joined


class MemoryFile:
    """A read-only file over a view; FFmpeg's reads copy one buffer at a time."""

    def __init__(self, view: View, budget: Budget) -> None:
        self._view = view
        self._budget = budget
        self._position = 0

    def read(self, size: int) -> bytes:
        self._budget.check()
        data = bytes(self._view[self._position : self._position + size])
        self._position += len(data)
        return data

    def seek(self, offset: int, whence: int = 0) -> int:
        base = (0, self._position, len(self._view))[whence]
        self._position = max(0, base + offset)
        return self._position

    def tell(self) -> int:
        return self._position
