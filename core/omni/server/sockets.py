"""WebSockets as uvicorn speaks them, with messages on their way charged to the budget of all requests."""

from __future__ import annotations

from typing import Any

from uvicorn.protocols.websockets.wsproto_impl import WSProtocol
from wsproto import events

from omni.errors import OmniError

TRY_AGAIN_LATER = 1013
"""The closing code for what is a 429 over HTTP."""


class SocketProtocol(WSProtocol):
    """A connection. ``config.app`` is what :func:`omni.server.app.create_app` made."""

    def __init__(self, config: Any, *others: Any, **more: Any) -> None:
        super().__init__(config, *others, **more)
        self._share = config.app.state.runtime.memory.share()

    def handle_message(self, event: events.TextMessage | events.BytesMessage) -> None:
        if self.close_sent:
            return
        try:
            self._share.settle(self.buffer.length + len(event.data))
        except OmniError as error:
            # What has arrived goes with the connection: a message is complete or there is none.
            self.buffer.clear()
            self.close_sent = True
            self.queue.put_nowait({"type": "websocket.disconnect", "code": TRY_AGAIN_LATER, "reason": error.message})
            self.transport.write(self.conn.send(events.CloseConnection(code=TRY_AGAIN_LATER, reason=error.message)))
            self.transport.close()
        else:
            super().handle_message(event)
        self._share.settle(self.buffer.length)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._share.settle(0)
