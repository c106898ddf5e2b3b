"""Threads that do a stage's work, and the one way back onto the event loop."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

from omni.errors import OmniError, StageFailed

T = TypeVar("T")

log = logging.getLogger("omni.stage")

TURN = 0.5e-3
"""Seconds within which a job begins its request's next item instead of going back to the loop first. The way to a
thread and back costs as much as many cheap steps; a step that takes longer than this is never joined by another."""


PATIENCE = 5.0
"""Seconds that closing waits for jobs under way."""


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
            try:
                self._loop.call_soon_threadsafe(self._drain)
            except RuntimeError:
                # After the loop nobody is left to be told; any other trouble must be heard.
                if not self._loop.is_closed():
                    raise

    def _drain(self) -> None:
        # Disarm first: a call that is appended after the last look below arms a new wake-up.
        self._armed = False
        calls = self._calls
        try:
            # Only what is here now, so that the loop gets to its sockets however fast the threads are.
            for _ in range(len(calls)):
                call, args = calls.popleft()
                call(*args)
        finally:
            # Also when a call has raised: those behind it are not to wait for the next post.
            if calls and not self._armed:
                self._armed = True
                self._loop.call_soon(self._drain)


class Workers:
    """A fixed number of daemon threads behind one unbounded queue; callers bound what they submit."""

    def __init__(self, name: str, count: int, mailbox: Mailbox) -> None:
        self._name = name
        self._mail = mailbox
        self._jobs: SimpleQueue[tuple[Callable[[], Any], Callable[[Any], None]] | None] = SimpleQueue()
        self._pending = 0
        self._quiet: asyncio.Future[None] | None = None
        self._threads = [
            threading.Thread(target=self._main, name=f"omni-{name}-{i}", daemon=True) for i in range(count)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def pending(self) -> int:
        """Jobs that are submitted and whose results have not come back."""
        return self._pending

    def submit(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Run ``work()`` in a thread, then ``done(result)`` on the loop; what it raises is the result, as an
        :class:`OmniError`. Called on the loop."""
        self._pending += 1
        self._jobs.put((work, done))

    def _main(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._run(*job)
            # A finished job must not keep its request's arrays alive until the next one comes.
            del job

    def _run(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 - handed to the request as a typed error; the thread lives on
            result = as_omni_error(self._name, error)
        self._mail.post(self._back, done, result)

    def _back(self, done: Callable[[Any], None], result: Any) -> None:
        self._pending -= 1
        done(result)
        if self._quiet is not None and not self._pending and not self._quiet.done():
            self._quiet.set_result(None)

    async def close(self, timeout: float | None = None) -> bool:
        """Stop when every job has come back, and those that its coming back has caused. False when a thread is still
        inside one after ``timeout`` seconds (None: ``PATIENCE``): it is left behind."""
        timeout = PATIENCE if timeout is None else timeout
        if self._pending:
            self._quiet = asyncio.get_running_loop().create_future()
            try:
                await asyncio.wait_for(self._quiet, timeout)
            except TimeoutError:
                log.warning("stage %s is still busy %.0f s after it was closed", self._name, timeout)
        for _ in self._threads:
            self._jobs.put(None)
        if self._pending:
            return False
        for thread in self._threads:
            thread.join()
        return True

    def when_gone(self, call: Callable[[], None]) -> None:
        """After :meth:`close` has left threads behind: ``call``, in a thread, when the last of them has come back."""

        def wait() -> None:
            for thread in self._threads:
                thread.join()
            try:
                call()
            except Exception:
                log.exception("stage %s failed to close", self._name)

        threading.Thread(target=wait, name=f"omni-{self._name}-close", daemon=True).start()


async def in_thread(call: Callable[[], T], name: str, undo: Callable[[T], None] | None = None) -> T:
    """Run a call that may take minutes in a thread of its own. Unlike asyncio's threads it does not hold up the end of
    the process when whoever waits for it is cancelled; ``undo`` is given the result then, in a thread as well."""
    loop = asyncio.get_running_loop()
    mail = Mailbox(loop)
    future: asyncio.Future[T] = loop.create_future()

    def start(target: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=target, name=f"omni-{name}", daemon=True)
        thread.start()
        return thread

    def succeed(result: T) -> None:
        if not future.done():
            future.set_result(result)
        elif undo is not None:
            start(partial(undo, result))

    def fail(error: BaseException) -> None:
        if not future.done():
            future.set_exception(error)

    def main() -> None:
        try:
            result = call()
        except BaseException as error:  # noqa: BLE001 - raised where it is awaited
            mail.post(fail, error)
        else:
            mail.post(succeed, result)

    thread = start(main)
    try:
        return await future
    except asyncio.CancelledError:
        # The result may be here already and whoever waits be cancelled before it is handed over.
        if future.done() and not future.cancelled() and future.exception() is None:
            succeed(future.result())
        raise
    finally:
        if not future.cancelled():
            # Nothing but its end is left of it.
            thread.join()


def as_omni_error(stage: str, error: BaseException) -> OmniError:
    """An error a stage raised on purpose as it is; anything else as :class:`StageFailed`, logged."""
    if isinstance(error, OmniError):
        return error
    log.error("stage %s failed", stage, exc_info=error)
    return StageFailed(f"stage {stage!r} failed: {type(error).__name__}: {error}")
