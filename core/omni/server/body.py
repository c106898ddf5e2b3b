"""Reading what a client sends: bounded in size, in time and in what all clients together hold."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import TracebackType

from starlette.types import Receive, Scope

from omni.errors import BadRequest, Busy, Cancelled, TooLarge
from omni.server.errors import BodyTimeout
from omni.server.settings import MIB

_SMALL = 64 * 1024


class Budget:
    """Bytes that all requests together may hold."""

    def __init__(self, megabytes: float) -> None:
        self._free = int(megabytes * MIB)

    def share(self) -> Share:
        return Share(self)

    def take(self, count: int) -> None:
        if count > self._free:
            raise Busy("too many large requests are being received at once", retry_after=5.0)
        self._free -= count

    def give(self, count: int) -> None:
        self._free += count


class Share:
    """What one request has taken of a budget; given back when its ``with`` block ends."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._taken = 0

    def take(self, count: int) -> None:
        """Raises Busy when the budget is used up."""
        self._budget.take(count)
        self._taken += count

    def __enter__(self) -> Share:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._budget.give(self._taken)
        self._taken = 0


def header(scope: Scope, name: bytes) -> str | None:
    """The first value of a request header; ``name`` in lower case."""
    for key, value in scope["headers"]:
        if key == name:
            return bytes(value).decode("latin-1")
    return None


def declared_length(scope: Scope) -> int:
    """What the client says about the size of its body, before any of it is read; 0 when it says nothing."""
    text = header(scope, b"content-length")
    return int(text) if text is not None and text.isdecimal() else 0


def too_large(limit: int, what: str, param: str | None = None) -> TooLarge:
    return TooLarge(f"{what} may have at most {round(limit / MIB, 2):g} MiB", param=param)


async def chunks(receive: Receive, pause: float) -> AsyncIterator[bytes]:
    """The body as it arrives.

    Raises:
        Cancelled: the client went away, or its body ended before the length that it gave.
        BodyTimeout: nothing came for ``pause`` seconds.
    """
    more = True
    while more:
        try:
            async with asyncio.timeout(pause):
                message = await receive()
        except TimeoutError:
            raise BodyTimeout(f"nothing of the request's body arrived for {pause:g} s") from None
        if message["type"] == "http.disconnect":
            raise Cancelled("the client went away before its request was complete")
        more = message.get("more_body", False)
        if body := message.get("body", b""):
            yield body


async def read_body(
    scope: Scope, receive: Receive, limit: int, pause: float, share: Share, what: str = "a JSON body"
) -> bytes | bytearray:
    """The whole body of a request, in memory.

    Raises:
        TooLarge, Busy, BodyTimeout, Cancelled: see :func:`chunks`; or a limit is exceeded.
        BadRequest: the body is compressed.
    """
    if declared_length(scope) > limit:
        raise too_large(limit, what)
    encoding = header(scope, b"content-encoding")
    if encoding not in (None, "identity"):
        raise BadRequest("compressed bodies are not taken; send it without Content-Encoding")
    body = bytearray()
    async for chunk in chunks(receive, pause):
        body += chunk
        if len(body) > limit:
            raise too_large(limit, what)
        if len(body) > _SMALL:
            share.take(len(chunk))
    return body
