"""Threads that do a stage's work, and the one way back onto the event loop."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from omni.errors import OmniError, StageFailed

log = logging.getLogger("omni.stage")


class Mailbox:
    """Calls from any thread, run in order on the loop's thread.

    Waking a loop costs a write to its self-pipe; calls that come while one wake-up is under way share it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._calls: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._armed = False

    def post(self, call: Callable[..., None], *args: Any) -> None:
        self._calls.append((call, args))
        if not self._armed:
            self._armed = True
            self._loop.call_soon_threadsafe(self._drain)

    def _drain(self) -> None:
        # Disarm first: a call that is appended after the last look below arms a new wake-up.
        self._armed = False
        calls = self._calls
        while calls:
            call, args = calls.popleft()
            call(*args)


class Workers:
    """A fixed number of daemon threads behind one unbounded queue; callers bound what they submit."""

    def __init__(self, name: str, count: int) -> None:
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._main, name=f"omni-{name}-{i}", daemon=True) for i in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, job: Callable[[], None]) -> None:
        """Run ``job`` in a thread; it must not raise."""
        self._jobs.put(job)

    def _main(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
            # A finished job must not keep its request's arrays alive until the next one comes.
            del job

    def close(self, timeout: float = 5.0) -> None:
        """Stop after the jobs already submitted; a thread that does not end in time is left behind."""
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join(timeout)
            if thread.is_alive():
                log.warning("thread %s is still busy %.0f s after close", thread.name, timeout)


def as_omni_error(stage: str, error: BaseException) -> OmniError:
    """An error a stage raised on purpose as it is; anything else as :class:`StageFailed`, logged."""
    if isinstance(error, OmniError):
        return error
    log.error("stage %s failed", stage, exc_info=error)
    return StageFailed(f"stage {stage!r} failed: {type(error).__name__}: {error}")
