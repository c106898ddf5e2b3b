"""Pages of other origins: browsers let one read an answer only if it says that they may (the Fetch standard, CORS)."""

from __future__ import annotations

from collections.abc import Collection

from starlette.types import Scope, Send

from omni.server.body import header

_AGAIN = b"600"
"""Seconds for which a browser need not ask again."""

Headers = list[tuple[bytes, bytes]]


class CrossOrigin:
    """What ``origins`` (``https://host:port``, or ``*`` for any) may do: everything a client with the key may.

    No credentials are allowed: a key is sent by the page itself, never by the browser on its own.
    """

    def __init__(self, origins: Collection[str]) -> None:
        self._any = "*" in origins
        self._origins = frozenset(origin.encode("latin-1") for origin in origins)

    def headers(self, scope: Scope) -> Headers:
        """What every answer to this request carries; nothing where no origin is allowed."""
        if not self._origins:
            return []
        if self._any:
            allowed = b"*"
        else:
            # Caches must not give an answer without the permission to an origin that has it.
            allowed = (header(scope, b"origin") or "").encode("latin-1")
            if allowed not in self._origins:
                return [(b"vary", b"origin")]
        headers = [(b"access-control-allow-origin", allowed), (b"access-control-expose-headers", b"*")]
        return headers if self._any else [*headers, (b"vary", b"origin")]

    def asks(self, scope: Scope) -> bool:
        """Whether this is a browser's question before the request of a page (a preflight)."""
        return (
            bool(self._origins)
            and scope["method"] == "OPTIONS"
            and header(scope, b"access-control-request-method") is not None
        )

    async def answer(self, scope: Scope, send: Send) -> None:
        """Answer a preflight. It has no key, and needs none: it says only what the page's own request may have."""
        wanted = (header(scope, b"access-control-request-headers") or "").encode("latin-1")
        headers = [
            (b"access-control-allow-methods", b"GET, HEAD, POST"),
            (b"access-control-max-age", _AGAIN),
            *([(b"access-control-allow-headers", wanted)] if wanted else []),
        ]
        await send({"type": "http.response.start", "status": 204, "headers": headers})
        await send({"type": "http.response.body", "body": b""})
