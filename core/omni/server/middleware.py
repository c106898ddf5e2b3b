"""What every request passes on its way in and out: its id, the key, other origins, the last catch of errors, the count.

Pure ASGI and the outermost layer: nothing that the framework raises or answers goes around it.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Mapping

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from omni.errors import Cancelled, OmniError, StageFailed, Unauthorized, Unavailable
from omni.server.body import header
from omni.server.cors import CrossOrigin
from omni.server.errors import report, send_error
from omni.server.exchange import Exchange
from omni.server.runtime import Runtime

OPEN_PATHS = frozenset({"/health", "/ready", "/docs", "/openapi.json"})
"""Answered without a key: they say nothing that a stranger could use."""


class Middleware:
    """Around ``app``. POSTs to the paths of ``direct`` go straight to their endpoints: the framework's layers, each
    of which every chunk of a stream would pass, cost more than the endpoints."""

    def __init__(self, app: ASGIApp, runtime: Runtime, direct: Mapping[str, ASGIApp]) -> None:
        self._app = app
        self._direct = direct
        self._runtime = runtime
        self._metrics = runtime.metrics
        self._cross_origin = CrossOrigin(runtime.settings.cors_origins)
        key = runtime.settings.api_key
        self._key = None if key is None else key.get_secret_value().encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._http(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif self._allowed(scope):
            scope["omni"] = Exchange(scope, send)
            try:
                await self._app(scope, receive, send)
            except asyncio.CancelledError:
                if self._runtime.state != "draining":
                    raise
        else:
            await send({"type": "websocket.close", "code": 1008, "reason": "invalid or missing API key"})

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "HEAD":
            # Load balancers and `wget --spider` ask so; the connection keeps the body back.
            scope = {**scope, "method": "GET"}
        exchange = scope["omni"] = Exchange(scope, send)

        async def tagged(message: Message) -> None:
            if message["type"] == "http.response.start":
                exchange.status = message["status"]
                own = (b"x-request-id", exchange.request_id.encode())
                message["headers"] = [*message["headers"], own, *self._cross_origin.headers(scope)]
            await send(message)

        self._metrics.in_flight.inc()
        try:
            if self._cross_origin.asks(scope):
                return await self._cross_origin.answer(scope, tagged)
            if not self._allowed(scope):
                raise Unauthorized("send the server's API key as 'Authorization: Bearer KEY'")
            app = self._direct.get(scope["path"], self._app) if scope["method"] == "POST" else self._app
            await app(scope, receive, tagged)
        except asyncio.CancelledError:
            if self._runtime.state != "draining":
                raise
            # The server has waited long enough for this request. Beyond here it would be a bug, with a traceback.
            await _fail(Unavailable("the server is shutting down", code="draining"), exchange, scope, receive, tagged)
        except Exception as error:  # noqa: BLE001 - nothing is above: the client gets an answer, the log the cause
            await _fail(error, exchange, scope, receive, tagged)
        finally:
            self._metrics.in_flight.dec()
            status = "499" if exchange.gone else str(exchange.status or 499)
            self._metrics.finished(_endpoint(exchange, scope), status, exchange.model, exchange.seconds)

    def _allowed(self, scope: Scope) -> bool:
        if self._key is None or scope["path"] in OPEN_PATHS:
            return True
        kind, _, token = (header(scope, b"authorization") or "").partition(" ")
        return kind.lower() == "bearer" and hmac.compare_digest(token.strip().encode("latin-1"), self._key)


async def _fail(error: Exception, exchange: Exchange, scope: Scope, receive: Receive, send: Send) -> None:
    known = error
    if not isinstance(known, OmniError):
        known = StageFailed(f"{type(error).__name__}: {error}")
        known.__cause__ = error
    if isinstance(known, Cancelled):
        exchange.gone = True
    if exchange.status:
        # Part of an answer is out: leaving it incomplete makes the connection break, which a client notices.
        report(known, exchange.request_id)
    else:
        await send_error(known, scope, receive, send)


def _endpoint(exchange: Exchange, scope: Scope) -> str:
    """The path's template, so that the number of labels is bounded."""
    if not exchange.endpoint and (route := scope.get("route")) is not None:
        exchange.endpoint = str(getattr(route, "path", ""))
    return exchange.endpoint or "other"
