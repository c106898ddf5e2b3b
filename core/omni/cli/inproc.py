"""HTTP without a socket: requests to the server's own app in this process, for commands that need no server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any

import httpx

Event = MutableMapping[str, Any]
App = Callable[
    [MutableMapping[str, Any], Callable[[], Awaitable[Event]], Callable[[Event], Awaitable[None]]], Awaitable[None]
]

_CHUNKS = 8  # body chunks that wait for the reader before the app is held up


class AppTransport(httpx.AsyncBaseTransport):
    """Sends requests to an ASGI app. Unlike httpx's own, the body of an answer arrives as it is made."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        exchange = _Exchange(self._app, request)
        try:
            start = await exchange.start()
        except BaseException:
            await exchange.aclose()
            raise
        return httpx.Response(start["status"], headers=start["headers"], stream=exchange)


class _Exchange(httpx.AsyncByteStream):
    """One request and its answer; the app runs in a task of its own until the answer is read or closed."""

    def __init__(self, app: App, request: httpx.Request) -> None:
        assert isinstance(request.stream, httpx.AsyncByteStream)
        self._upload = aiter(request.stream)
        self._events: asyncio.Queue[Event | None] = asyncio.Queue(_CHUNKS)
        self._uploaded = False
        self._complete = False
        self._closed = asyncio.Event()
        url = request.url
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": request.method,
            "scheme": url.scheme,
            "path": url.path,
            "raw_path": url.raw_path.split(b"?")[0],
            "query_string": url.query,
            "root_path": "",
            "headers": [(name.lower(), value) for name, value in request.headers.raw],
            "server": (url.host, url.port or 80),
            "client": ("127.0.0.1", 0),
        }
        self._task = asyncio.ensure_future(self._run(app, scope))

    async def _run(self, app: App, scope: MutableMapping[str, Any]) -> None:
        try:
            await app(scope, self._receive, self._events.put)
        finally:
            if not self._closed.is_set():
                await self._events.put(None)

    async def _receive(self) -> Event:
        if not self._uploaded:
            try:
                return {"type": "http.request", "body": await anext(self._upload), "more_body": True}
            except StopAsyncIteration:
                self._uploaded = True
                return {"type": "http.request", "body": b"", "more_body": False}
        await self._closed.wait()
        return {"type": "http.disconnect"}

    async def _next(self) -> Event:
        event = await self._events.get()
        if event is None:
            await self._task
            raise httpx.RemoteProtocolError("the answer broke off")
        return event

    async def start(self) -> Event:
        """The event that opens the answer; whatever the app raises before it is raised here."""
        return await self._next()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        more = True
        while more:
            event = await self._next()
            more = event.get("more_body", False)
            self._complete = not more
            if event.get("body"):
                yield event["body"]

    async def aclose(self) -> None:
        """Tell the app that the client is gone, and wait for it to notice."""
        self._closed.set()
        if not self._complete:
            self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
