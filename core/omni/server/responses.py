"""Answers while they are made: one client, one pipeline stream, and what happens when either breaks."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import msgspec
from starlette.types import Message, Receive, Scope, Send

from omni.errors import Cancelled, OmniError, StageFailed
from omni.pipeline import RequestStream
from omni.server.errors import body_of, log, report

Headers = Sequence[tuple[bytes, bytes]]

SSE_HEADERS: Headers = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    # nginx would hold events back.
    (b"x-accel-buffering", b"no"),
)


class Client:
    """The client of one request, watched while a pipeline works for it.

    Inside the ``with`` block ``stream`` is cancelled as soon as the client goes away, or has taken nothing of the
    answer for ``stall`` seconds; on the way out whatever still runs is cancelled.
    """

    __slots__ = (
        "_complete",
        "_deadline",
        "_receive",
        "_send",
        "_since",
        "_stall",
        "_stalled",
        "_stream",
        "_task",
        "_watcher",
        "gone",
    )

    def __init__(self, receive: Receive, send: Send, stream: RequestStream, stall: float) -> None:
        self.gone = False
        self._receive = receive
        self._send = send
        self._stream = stream
        self._stall = stall
        self._stalled = False
        self._complete = False
        self._since: float | None = None

    async def __aenter__(self) -> Client:
        loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._watcher = loop.create_task(self._watch())
        self._deadline = loop.call_later(self._stall, self._check)
        return self

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        # A complete answer ends in the same message.
        if not self._complete:
            self.gone = True
            self._stream.cancel()

    def _check(self) -> None:
        loop = asyncio.get_running_loop()
        if self._since is not None and loop.time() - self._since >= self._stall and self._task is not None:
            self._stalled = self.gone = True
            self._task.cancel()
        else:
            self._deadline = loop.call_later(self._stall, self._check)

    async def send(self, message: Message) -> None:
        """Returns when the connection can take more."""
        self._since = asyncio.get_running_loop().time()
        self._complete = message["type"] == "http.response.body" and not message["more_body"]
        await self._send(message)
        self._since = None

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self._deadline.cancel()
        self._watcher.cancel()
        self._stream.cancel()
        if self._stalled and kind is asyncio.CancelledError and self._task is not None:
            self._task.uncancel()
            log.warning("a client took nothing of its answer for %g s: dropped", self._stall)
            return True
        return False


class Answer:
    """A streamed answer whose status line waits for its first bytes, so that an earlier error keeps its status."""

    __slots__ = ("_client", "_headers", "started")

    def __init__(self, client: Client, headers: Headers) -> None:
        self._client = client
        self._headers = headers
        self.started = False

    async def write(self, data: bytes) -> None:
        if not self.started:
            self.started = True
            await self._client.send({"type": "http.response.start", "status": 200, "headers": list(self._headers)})
        await self._client.send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self, data: bytes = b"") -> None:
        if not self.started:
            self.started = True
            await self._client.send({"type": "http.response.start", "status": 200, "headers": list(self._headers)})
        await self._client.send({"type": "http.response.body", "body": data, "more_body": False})


async def send_whole(send: Send, body: bytes, headers: Headers, status: int = 200) -> None:
    """One complete answer with its length."""
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
    await send({"type": "http.response.body", "body": body, "more_body": False})


def event(data: Any) -> bytes:
    """One server-sent event."""
    return b"data: " + msgspec.json.encode(data) + b"\n\n"


async def break_off(error: Exception, answer: Answer, scope: Scope, *, sse: bool) -> None:
    """End an answer that has begun and cannot be finished: an ``error`` event, or a body that visibly breaks.

    Raises:
        Exception: ``error`` itself, when nothing was sent yet, so that it becomes a proper status.
    """
    exchange = scope["omni"]
    if not answer.started:
        raise error
    if isinstance(error, Cancelled):
        exchange.gone = True
        return
    known = error if isinstance(error, OmniError) else StageFailed(f"{type(error).__name__}: {error}")
    exchange.status = known.status
    report(known, exchange.request_id)
    if sse:
        await answer.end(event({"type": "error", **body_of(known, exchange.request_id)}))
    # Returning with the body open makes the server close the connection in its middle.
