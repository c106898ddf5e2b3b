"""Answers while they are made: one client, one pipeline stream, and what happens when either breaks."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import msgspec
from starlette.types import Receive, Scope, Send

from omni.errors import Cancelled, OmniError, StageFailed
from omni.request_stream import RequestStream
from omni.server.errors import body_of, log, report

Headers = Sequence[tuple[bytes, bytes]]

SSE_HEADERS: Headers = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    # nginx would hold events back.
    (b"x-accel-buffering", b"no"),
)


def finish_header(reason: str | None) -> Headers:
    """Of a whole answer: why what it holds ends; none where the model does not tell."""
    return () if reason is None else ((b"x-omni-finish-reason", reason.encode("latin-1", "replace")),)


def event(data: Any) -> bytes:
    """One server-sent event."""
    return b"data: " + msgspec.json.encode(data) + b"\n\n"


class Answer:
    """The answer to one request, while ``stream`` works for it.

    The status line waits for the first bytes, so that an error before them keeps its status. Inside the ``with``
    block the stream is cancelled as soon as the client goes away, or has taken nothing of the answer for ``stall``
    seconds; on the way out whatever still runs is cancelled.
    """

    __slots__ = (
        "_complete",
        "_exchange",
        "_headers",
        "_loop",
        "_receive",
        "_send",
        "_since",
        "_stall",
        "_stalled",
        "_stream",
        "_task",
        "_timer",
        "_watcher",
        "started",
    )

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, stream: RequestStream, stall: float, headers: Headers
    ) -> None:
        self._exchange = scope["omni"]
        self._receive = receive
        self._send = send
        self._stream = stream
        self._stall = stall
        self._headers = headers
        self._since: float | None = None
        self._stalled = False
        self._complete = False
        self.started = False

    async def __aenter__(self) -> Answer:
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._watcher = self._loop.create_task(self._watch())
        self._timer = self._loop.call_later(self._stall, self._check)
        return self

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        # A complete answer ends in the same message.
        if not self._complete:
            self._exchange.gone = True
            self._stream.cancel()

    def _check(self) -> None:
        if self._since is not None and self._loop.time() - self._since >= self._stall and self._task is not None:
            self._stalled = self._exchange.gone = True
            self._task.cancel()
        else:
            self._timer = self._loop.call_later(self._stall, self._check)

    async def write(self, data: bytes) -> None:
        """Returns when the connection can take more."""
        self._since = self._loop.time()
        if not self.started:
            await self._start(list(self._headers))
        await self._exchange.send({"type": "http.response.body", "body": data, "more_body": True})
        self._since = None

    async def end(self, data: bytes = b"") -> None:
        """The last bytes; the answer is complete."""
        self._since = self._loop.time()
        if not self.started:
            await self._start(list(self._headers))
        self._complete = True
        await self._exchange.send({"type": "http.response.body", "body": data, "more_body": False})

    async def whole(self, body: bytes, more_headers: Headers = ()) -> None:
        """All of the answer at once, with its length."""
        self._since = self._loop.time()
        await self._start([*self._headers, *more_headers, (b"content-length", str(len(body)).encode())])
        self._complete = True
        await self._exchange.send({"type": "http.response.body", "body": body, "more_body": False})

    async def _start(self, headers: list[tuple[bytes, bytes]]) -> None:
        self.started = True
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})

    async def break_off(self, error: Exception, *, sse: bool) -> None:
        """End an answer that cannot be finished: an ``error`` event, or a body that visibly breaks.

        Raises:
            Exception: ``error`` itself, when nothing was sent yet, so that it becomes a proper status.
        """
        if not self.started:
            raise error
        if isinstance(error, Cancelled):
            self._exchange.gone = True
            return
        known = error if isinstance(error, OmniError) else StageFailed(f"{type(error).__name__}: {error}")
        self._exchange.status = known.status
        report(known, self._exchange.request_id)
        if sse:
            await self.end(event({"type": "error", **body_of(known, self._exchange.request_id)}))
        # Returning with the body open makes the server close the connection in its middle.

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self._timer.cancel()
        self._watcher.cancel()
        self._stream.cancel()
        if self._stalled and kind is asyncio.CancelledError and self._task is not None:
            self._task.uncancel()
            log.warning("a client took nothing of its answer for %g s: dropped", self._stall)
            return True
        return False
