"""A transport that loses or doubles the third item of one edge: the ``edge``-th that it connects."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from omni import OmniError, hookimpl


class Faulty:
    def __init__(self, receiver: Any, copies: int) -> None:
        self._receiver = receiver
        self._copies = copies
        self._count = 0

    @property
    def room(self) -> int:
        return int(self._receiver.room)

    def on_room(self, wake: Callable[[], None]) -> None:
        self._receiver.on_room(wake)

    def put(self, item: Any) -> None:
        self._count += 1
        for _ in range(self._copies if self._count == 3 else 1):
            self._receiver.put(item)

    def end(self, count: int) -> None:
        self._receiver.end(count)

    def fail(self, error: OmniError) -> None:
        self._receiver.fail(error)


class FaultyTransport:
    name = "faulty"
    edge: ClassVar[int] = 0
    copies: ClassVar[int] = 0

    def __init__(self) -> None:
        self._connected = 0

    def connect(self, message_type: type, receiver: Any) -> Any:
        self._connected += 1
        return Faulty(receiver, self.copies) if self._connected - 1 == self.edge else receiver


@hookimpl
def omni_transports() -> Mapping[str, str]:
    return {"faulty": "toy_transport:FaultyTransport"}
