"""One request on its way through the server."""

from __future__ import annotations

import os
import re
import time

from starlette.types import Scope, Send

from omni.server.body import header

_SANE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/+=-]{0,127}")


class Exchange:
    """What is known of a request; ``scope["omni"]``. ``send`` is the connection's own, for bodies that need speed."""

    __slots__ = ("_own_id", "endpoint", "gone", "model", "request_id", "send", "started", "status")

    def __init__(self, scope: Scope, send: Send) -> None:
        given = header(scope, b"x-request-id")
        # The client's own, if it may stand in a header and a log.
        self._own_id = given is None or not _SANE_ID.fullmatch(given)
        self.request_id = new_id() if self._own_id or given is None else given
        self.send = send
        self.started = time.perf_counter()
        self.endpoint = ""
        self.model = ""
        self.status = 0
        self.gone = False

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.started

    def unique_id(self) -> str:
        """An id that no other request has, which a client's own may not be."""
        return self.request_id if self._own_id else new_id()


def new_id() -> str:
    return os.urandom(16).hex()
