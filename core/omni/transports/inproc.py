"""Edges inside one process: bounded queues on the event loop's thread, items go by reference."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from omni.errors import OmniError, StageFailed
from omni.messages import Message
from omni.transports.base import Outlet


def _nothing() -> None:
    pass


class Edge:
    """A bounded stream of items between two stages of one request.

    The consumer sets ``on_item``, which is called whenever an item, the end or an error has arrived.
    An error overtakes the items that wait.
    """

    __slots__ = ("_on_room", "capacity", "closed", "ended", "error", "items", "on_item", "received")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.items: deque[Any] = deque()
        self.received = 0
        self.ended = False
        self.closed = False
        self.error: OmniError | None = None
        self.on_item: Callable[[], None] = _nothing
        self._on_room: Callable[[], None] = _nothing

    @property
    def room(self) -> int:
        return max(0, self.capacity - len(self.items))

    def on_room(self, wake: Callable[[], None]) -> None:
        self._on_room = wake

    def put(self, item: Any) -> None:
        if self.ended or self.closed:
            return
        self.items.append(item)
        self.received += 1
        self.on_item()

    def end(self) -> None:
        if self.ended or self.closed:
            return
        self.ended = True
        self.on_item()

    def fail(self, error: OmniError) -> None:
        if self.ended or self.closed:
            return
        self.ended = True
        self.error = error
        self.items.clear()
        self.on_item()

    def take(self) -> Any:
        """The oldest item; wakes the producer when the edge was full."""
        full = len(self.items) >= self.capacity
        item = self.items.popleft()
        if full:
            self._on_room()
        return item

    @property
    def drained(self) -> bool:
        """Nothing waits and nothing will come."""
        return self.ended and not self.items

    def close(self) -> None:
        """The consumer leaves: drop what waits and ignore what still comes."""
        self.closed = True
        self.items.clear()
        self.on_item = _nothing
        self._on_room = _nothing


class Tee:
    """One outlet onto several consumers; the slowest sets the pace."""

    def __init__(self, outlets: Sequence[Outlet]) -> None:
        self._outlets = outlets

    @property
    def room(self) -> int:
        return min(outlet.room for outlet in self._outlets)

    def on_room(self, wake: Callable[[], None]) -> None:
        for outlet in self._outlets:
            outlet.on_room(wake)

    def put(self, item: Any) -> None:
        for outlet in self._outlets:
            outlet.put(item)

    def end(self) -> None:
        for outlet in self._outlets:
            outlet.end()

    def fail(self, error: OmniError) -> None:
        for outlet in self._outlets:
            outlet.fail(error)


class Joined(Message):
    """The i-th items of several edges, by the name of the stage they come from."""

    parts: dict[str, Any]


def join(sources: Mapping[str, Edge], capacity: int) -> Edge:
    """Zip several edges into one of :class:`Joined`; unequal lengths are an error, never a shorter success."""
    joined = Edge(capacity)

    def pump() -> None:
        for edge in sources.values():
            if edge.error is not None:
                joined.fail(edge.error)
                return
        while joined.room and all(edge.items for edge in sources.values()):
            joined.put(Joined(parts={name: edge.take() for name, edge in sources.items()}))
        drained = [name for name, edge in sources.items() if edge.drained]
        if len(drained) == len(sources):
            joined.end()
        elif drained and any(edge.items for edge in sources.values() if not edge.drained):
            joined.fail(StageFailed(f"edges to be joined differ in length: {drained} ended first"))

    for edge in sources.values():
        edge.on_item = pump
    joined.on_room(pump)
    return joined


class InprocTransport:
    """Hands items over by reference."""

    name = "inproc"

    def connect(self, message_type: type[Message], receiver: Outlet) -> Outlet:
        return receiver
