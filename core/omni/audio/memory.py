"""What FFmpeg reads from: bytes in memory, with a bound on the work that they can cause."""

from __future__ import annotations

import time

from omni.audio.walks import Damaged

_STEP_SECONDS = 5.0  # processor time from one packet to the next; honest files take microseconds


class Budget:
    """Bounds the work between two packets: a file can hold millions of empty elements."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        self._end = time.thread_time() + _STEP_SECONDS

    def check(self) -> None:
        if time.thread_time() > self._end:
            raise Damaged(f"it holds next to no audio (none found in {_STEP_SECONDS:g} s)")


class MemoryFile:
    """A read-only file over a view; FFmpeg's reads copy one buffer at a time."""

    def __init__(self, view: memoryview, budget: Budget) -> None:
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
