"""HTTP/1.1 as uvicorn speaks it, with heads bounded in size and time, our envelope for what is no HTTP, and requests
that are read whole though they offer HTTP/2."""

from __future__ import annotations

import asyncio
from typing import Any

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from omni.errors import BadRequest, OmniError
from omni.server.errors import BodyTimeout, HeadTooLarge, response_to
from omni.server.exchange import new_id

MAX_HEAD = 64 * 1024
"""Bytes of a request line and its headers."""


class Protocol(HttpToolsProtocol):
    """A connection. ``config.app`` is what :func:`omni.server.app.create_app` made: its settings say how long a client
    may take (``body_seconds``) from connecting, or from the first byte of a further request, to the end of the head."""

    def __init__(self, config: Any, **others: Any) -> None:
        super().__init__(config, **others)
        self._patience: float = config.app.state.runtime.settings.body_seconds
        self._head = 0
        self._in_head = True
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_is_there()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head, self._in_head = 0, True
        if self._timer is None:
            self._wait_for_head()

    def on_headers_complete(self) -> None:
        if not self._declines():
            self._head_is_there()
            super().on_headers_complete()

    def on_message_complete(self) -> None:
        if not self._declines():
            super().on_message_complete()

    def data_received(self, data: bytes) -> None:
        began = self._in_head
        self._unset_keepalive_if_required()
        self._feed(data)
        if self._in_head and not self.transport.is_closing():
            # Data in which a further head begins also ends what was before it, and is at most one read.
            self._head += len(data) if began else 1
            if self._head > MAX_HEAD:
                self._refuse(HeadTooLarge(f"a request's address and headers may have at most {MAX_HEAD} bytes"))

    def send_400_response(self, msg: str) -> None:
        self._refuse(BadRequest("this is not a valid HTTP request", code="invalid_http"))

    def _feed(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except HttpParserUpgrade as upgrade:
            if self._should_upgrade():
                self.handle_websocket_upgrade()
            elif self._declines():
                # The parser takes what follows for the other protocol and drops it: the request is read once more
                # without the offer. Java's HttpClient and curl --http2 offer HTTP/2 with every first request.
                head = self._head_without_offer()
                self.parser = HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's
                self._feed(head + data[upgrade.args[0] :])
        except HttpParserError:
            self.send_400_response("")

    def _declines(self) -> bool:
        """Whether the head offers a protocol that is not spoken here."""
        return self.parser.should_upgrade() and self._get_upgrade() is not None and not self._should_upgrade()

    def _head_without_offer(self) -> bytes:
        version = self.parser.get_http_version().encode()
        lines = [b"%s %s HTTP/%s" % (self.parser.get_method(), self.url, version)]
        lines += [name + b": " + value for name, value in self.headers if name != b"upgrade"]
        return b"\r\n".join(lines) + b"\r\n\r\n"

    def _wait_for_head(self) -> None:
        self._timer = self.loop.call_later(self._patience, self._too_slow)

    def _head_is_there(self) -> None:
        self._in_head = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_slow(self) -> None:
        self._timer = None
        if self.cycle is not None and not self.cycle.response_complete:
            self._wait_for_head()  # a request sent ahead, of which nothing is read before the one under way is answered
        elif self._head:
            self._refuse(BodyTimeout(f"the request's headers did not arrive within {self._patience:g} s"))
        else:
            self.transport.close()

    def _refuse(self, error: OmniError) -> None:
        self._head_is_there()
        request_id = new_id()
        response = response_to(error, request_id)
        headers = dict(response.raw_headers) | {b"connection": b"close", b"x-request-id": request_id.encode()}
        lines = [
            name + b": " + value + b"\r\n" for name, value in (*self.server_state.default_headers, *headers.items())
        ]
        self.transport.write(b"".join([STATUS_LINE[response.status_code], *lines, b"\r\n", bytes(response.body)]))
        self.transport.close()
