"""What a caller holds of a request that runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Any, Literal

from omni.errors import Cancelled, OmniError
from omni.transports.inproc import Edge

Outcome = Literal["completed", "failed", "cancelled"]


class RequestStream:
    """The results of one request, as they are made. Iterate it to its end, or leave the ``async with``: whatever
    still runs is cancelled then. One reader only."""

    def __init__(self, request_id: str, finished: Callable[[str, Outcome], None], edge: Edge) -> None:
        """``finished(request_id, outcome)`` is called once, when the request has ended."""
        self.request_id = request_id
        self._finished = finished
        self._edge = edge
        self._waiter: asyncio.Future[None] | None = None
        self._gathering = False
        self._outcome: Outcome | None = None
        self._error: OmniError | None = None
        edge.on_item = self._arrived

    def _arrived(self) -> None:
        # At once, not when the client reads: a failed request must not hold its place while its client is slow.
        edge = self._edge
        if edge.error is not None:
            self.fail(edge.error)
        elif not self._gathering or edge.ended or not edge.room:
            self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def __aiter__(self) -> RequestStream:
        return self

    async def __anext__(self) -> Any:
        edge = self._edge
        while not edge.items:
            if self._outcome is None and edge.ended:
                self._close("completed")
            match self._outcome:
                case "completed":
                    raise StopAsyncIteration
                case "cancelled":
                    raise Cancelled("the request was cancelled")
                case "failed":
                    assert self._error is not None
                    raise self._error
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return edge.take()

    def poll(self) -> Any:
        """An item that is already here, or None; never waits."""
        return self._edge.take() if self._edge.items else None

    async def gather(self, seconds: float) -> None:
        """Let items gather for ``seconds``, or until no more fit or will come."""
        edge = self._edge
        if self._outcome is not None or edge.ended or not edge.room:
            return
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        self._gathering = True
        timer = loop.call_later(seconds, self._wake)
        try:
            await self._waiter
        finally:
            self._waiter = None
            self._gathering = False
            timer.cancel()

    def fail(self, error: OmniError) -> None:
        """End the stream with an error and stop every stage's work on it. A finished request is left alone."""
        if self._outcome is None:
            self._error = error
            self._close("failed")
            self._wake()

    def cancel(self) -> None:
        """Stop every stage's work on this request. Idempotent; a finished request is left alone."""
        if self._outcome is None:
            self._close("cancelled")
            self._wake()

    def _close(self, outcome: Outcome) -> None:
        self._outcome = outcome
        self._edge.close()
        self._finished(self.request_id, outcome)

    async def __aenter__(self) -> RequestStream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()
