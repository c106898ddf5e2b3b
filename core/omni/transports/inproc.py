"""Edges inside one process: bounded queues on the event loop's thread, items go by reference."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from omni.errors import OmniError, StageFailed
from omni.messages import Joined, Message
from omni.transports.base import Outlet


def _nothing() -> None:
    pass


class Edge:
    """A bounded stream of items between two stages of one request.

    The consumer sets ``on_item``, which is called at once whenever an item, the end or an error has arrived. The
    producer's wake-up is deferred to the loop's next turn. So calls run downstream only, and neither side is ever
    called back into while it is in the middle of something. An error overtakes the items that wait.
    """

    __slots__ = (
        *("_on_room", "capacity", "closed", "ended", "error", "items"),
        *("on_item", "on_settled", "received", "settled"),
    )

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.items: deque[Any] = deque()
        self.received = self.settled = 0
        self.ended = False
        self.closed = False
        self.error: OmniError | None = None
        self.on_item: Callable[[], None] = _nothing
        self.on_settled: Callable[[], None] = _nothing
        self._on_room: Callable[[], None] = _nothing

    @property
    def room(self) -> int:
        room = self.capacity - len(self.items)
        return room if room > 0 else 0

    def on_room(self, wake: Callable[[], None]) -> None:
        self._on_room = wake

    def put(self, item: Any) -> None:
        if self.ended or self.closed:
            return
        self.items.append(item)
        self.received += 1
        self.on_item()

    def end(self, count: int) -> None:
        if self.ended or self.closed:
            return
        if count != self.received:
            self.fail(StageFailed(f"{count} items were sent between two stages, {self.received} arrived"))
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
        if len(self.items) >= self.capacity and self._on_room is not _nothing:
            asyncio.get_running_loop().call_soon(self._room_appeared)
        return self.items.popleft()

    def settle(self) -> None:
        """The consumer is done with an item, the oldest of those it has taken."""
        self.settled += 1
        self.on_settled()

    def _room_appeared(self) -> None:
        self._on_room()

    @property
    def queued(self) -> int:
        """Items that wait here."""
        return len(self.items)

    @property
    def drained(self) -> bool:
        """Nothing waits and nothing will come."""
        return self.ended and not self.items

    def close(self) -> None:
        """The consumer leaves: drop what waits and ignore what still comes."""
        self.closed = True
        self.items.clear()
        self.on_item = self.on_settled = _nothing
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

    def end(self, count: int) -> None:
        for outlet in self._outlets:
            outlet.end(count)

    def fail(self, error: OmniError) -> None:
        for outlet in self._outlets:
            outlet.fail(error)


class Window:
    """An outlet that has room for ``limit`` items more than a later stage is done with; ``goal`` is the edge into that
    stage, which takes one item for each that goes in here."""

    def __init__(self, outlet: Outlet, goal: Edge, limit: int) -> None:
        self._outlet = outlet
        self._goal = goal
        self._limit = limit
        self._sent = 0
        self._wake: Callable[[], None] = _nothing
        goal.on_settled = self._settled

    @property
    def room(self) -> int:
        return max(0, min(self._outlet.room, self._limit - self._sent + self._goal.settled))

    def on_room(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._outlet.on_room(wake)

    def _settled(self) -> None:
        if self._sent - self._goal.settled == self._limit - 1:  # there was no room
            asyncio.get_running_loop().call_soon(self._wake)

    def put(self, item: Any) -> None:
        self._sent += 1
        self._outlet.put(item)

    def end(self, count: int) -> None:
        self._outlet.end(count)

    def fail(self, error: OmniError) -> None:
        self._outlet.fail(error)


class Join(Edge):
    """Several edges zipped into one of :class:`Joined`; unequal lengths are an error, never a shorter success."""

    __slots__ = ("_sources",)

    def __init__(self, sources: Mapping[str, Edge], capacity: int) -> None:
        super().__init__(capacity)
        self._sources = sources
        for edge in sources.values():
            edge.on_item = self._pump
        self.on_room(self._pump)

    def _pump(self) -> None:
        sources = self._sources
        for edge in sources.values():
            if edge.error is not None:
                self.fail(edge.error)
                return
        while self.room and all(edge.items for edge in sources.values()):
            self.put(Joined(parts={name: edge.take() for name, edge in sources.items()}))
        drained = [name for name, edge in sources.items() if edge.drained]
        if len(drained) == len(sources):
            self.end(self.received)
        elif drained and any(edge.items for edge in sources.values()):
            self.fail(StageFailed(f"the stages to be joined gave different numbers of items: {drained} ended first"))

    @property
    def queued(self) -> int:
        return len(self.items) + sum(edge.queued for edge in self._sources.values())

    def close(self) -> None:
        super().close()
        for edge in self._sources.values():
            edge.close()


class InprocTransport:
    """Hands items over by reference."""

    name = "inproc"

    def connect(self, message_type: type[Message], receiver: Outlet) -> Outlet:
        return receiver
