"""Reading what a client sends: bounded in size, in time and in what all clients together hold."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import TracebackType

from starlette.types import Receive, Scope

from omni.errors import BadRequest, Busy, Cancelled, TooLarge
from omni.server.errors import BodyTimeout, Interrupted
from omni.server.settings import MIB

_SMALL = 64 * 1024
_SLOWEST = 512
"""Bytes per second below which a client uses up its patience: less than speech takes that is sent as it is spoken."""


class Budget:
    """Bytes that all requests together may hold."""

    def __init__(self, megabytes: float) -> None:
        self._total = self._free = int(megabytes * MIB)

    def share(self) -> Share:
        return Share(self)

    def change(self, held: int, wanted: int) -> None:
        """Let a request that holds ``held`` bytes hold ``wanted``.

        Raises:
            Busy: others hold too much.
            TooLarge: it is more than there is.
        """
        if wanted > self._total:
            limit = round(self._total / MIB, 2)
            raise TooLarge(f"this request alone needs more than the {limit:g} MiB that all together may take")
        if wanted - held > self._free:
            raise Busy("too many large requests are being received at once", retry_after=5.0)
        self._free -= wanted - held


class Share:
    """What one request holds of a budget; given back when its ``with`` block ends. The first 64 KiB are free: a small
    request passes when large ones have used up the budget."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._held = 0

    def take(self, count: int) -> None:
        """Hold ``count`` bytes more. Raises as :meth:`Budget.change`."""
        self.settle(self._held + count)

    def settle(self, count: int) -> None:
        """Hold ``count`` bytes in all. Raises as :meth:`Budget.change`; what is given back always can be."""
        self._budget.change(_charged(self._held), _charged(count))
        self._held = count

    def __enter__(self) -> Share:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.settle(0)


def _charged(count: int) -> int:
    return count if count > _SMALL else 0


class Intake:
    """Bodies on their way in: how long their clients are waited for, and an end to all when the server stops."""

    def __init__(self, pause: float) -> None:
        """``pause``: seconds that a client may be waited for, in one go or bit by bit; 512 bytes win one of them back,
        so that none can hold what it has taken by a byte now and then."""
        self._pause = pause
        self._waits: set[asyncio.Timeout] = set()
        self._closed = False

    def close(self) -> None:
        """End every body that is not complete."""
        self._closed = True
        for wait in self._waits:
            if not wait.expired():
                wait.reschedule(0.0)

    async def chunks(self, receive: Receive) -> AsyncIterator[bytes]:
        """The body as it arrives.

        Raises:
            Cancelled: the client went away, or its body ended before the length that it gave.
            BodyTimeout: it was waited for for too long.
            Interrupted: the server stops.
        """
        now = asyncio.get_running_loop().time
        more, patience = True, self._pause
        while more:
            if self._closed:
                raise Interrupted("the server is shutting down")
            began = now()
            wait = asyncio.timeout(patience)
            try:
                async with wait:
                    self._waits.add(wait)
                    message = await receive()
            except TimeoutError:
                if self._closed:
                    raise Interrupted("the server is shutting down") from None
                raise BodyTimeout(
                    f"the request's body came too slowly, or nothing of it for {self._pause:g} s"
                ) from None
            finally:
                self._waits.discard(wait)
            if message["type"] == "http.disconnect":
                raise Cancelled("the client went away before its request was complete")
            more = message.get("more_body", False)
            body = message.get("body", b"")
            patience = min(self._pause, patience - (now() - began) + len(body) / _SLOWEST)
            if body:
                yield body


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


async def read_body(
    scope: Scope, receive: Receive, limit: int, intake: Intake, share: Share, what: str
) -> bytes | bytearray:
    """The whole body of a request, in memory.

    Raises:
        TooLarge, Busy: a limit is exceeded, or those of all requests together.
        BodyTimeout, Cancelled, Interrupted: see :meth:`Intake.chunks`.
        BadRequest: the body is compressed.
    """
    if declared_length(scope) > limit:
        raise too_large(limit, what)
    encoding = header(scope, b"content-encoding")
    if encoding not in (None, "identity"):
        raise BadRequest("compressed bodies are not taken; send it without Content-Encoding")
    body = bytearray()
    async for chunk in intake.chunks(receive):
        body += chunk
        if len(body) > limit:
            raise too_large(limit, what)
        share.take(len(chunk))
    return body
