"""A transport that encodes and decodes every item in place: what crosses a process boundary, without one.

For tests and for plugin authors: with ``--set transport=codec`` a message that could not leave the process
fails at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from omni.errors import ErrorInfo, OmniError, StageFailed, from_wire
from omni.messages import Message, decode, encode
from omni.transports.base import Outlet


class _CodecOutlet:
    def __init__(self, message_type: type[Message], receiver: Outlet) -> None:
        self._type = message_type
        self._receiver = receiver

    @property
    def room(self) -> int:
        return self._receiver.room

    def on_room(self, wake: Callable[[], None]) -> None:
        self._receiver.on_room(wake)

    def put(self, item: Any) -> None:
        try:
            header, buffers = encode(item)
            copy = decode(self._type, header, [bytes(b) for b in buffers])
        except Exception as error:  # noqa: BLE001 - handed to the request as a typed error
            self.fail(StageFailed(f"{type(item).__name__} does not cross a process boundary: {error}"))
            return
        self._receiver.put(copy)

    def end(self, count: int) -> None:
        self._receiver.end(count)

    def fail(self, error: OmniError) -> None:
        info = msgspec.msgpack.encode(error.to_wire())
        self._receiver.fail(from_wire(msgspec.msgpack.decode(info, type=ErrorInfo)))


class CodecTransport:
    """Hands on a decoded copy of every item; arrays in it are read-only, as they are behind a real link."""

    name = "codec"

    def connect(self, message_type: type[Message], receiver: Outlet) -> Outlet:
        return _CodecOutlet(message_type, receiver)
