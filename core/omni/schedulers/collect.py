"""Collect: joins the items of a request, inline on the event loop."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from omni.schedulers.base import StageStats
from omni.schedulers.worker import as_omni_error
from omni.stages import Aggregator
from omni.transports.base import Outlet
from omni.transports.inproc import Edge


class _Collection:
    __slots__ = ("again", "alive", "busy", "outlet", "request_id", "sources", "state")

    def __init__(self, request_id: str, sources: Mapping[str, Edge], outlet: Outlet, state: Any) -> None:
        self.request_id = request_id
        self.sources = sources
        self.outlet = outlet
        self.state = state
        self.alive = True
        self.busy = False
        self.again = False


class CollectScheduler:
    """Runs an :class:`Aggregator`; no threads, no queue of its own."""

    input_capacity = 1

    def __init__(self, stage: Aggregator[Any, Any, Any]) -> None:
        self.name = stage.context.stage
        self._stage = stage
        self._open: dict[str, _Collection] = {}
        self._stats = StageStats()

    def open(self, request_id: str, sources: Mapping[str, Edge], outlet: Outlet) -> None:
        stream = _Collection(request_id, sources, outlet, self._stage.open())
        self._open[request_id] = stream

        def pump() -> None:
            self._pump(stream)

        for edge in sources.values():
            edge.on_item = pump
        outlet.on_room(pump)
        pump()

    def _pump(self, stream: _Collection) -> None:
        # Taking an item can wake the producer, giving one the consumer, and either can call back into here
        # while the stage is between two outputs of one item: then only look again afterwards.
        stream.again = True
        if stream.busy:
            return
        stream.busy = True
        try:
            while stream.again and stream.alive:
                stream.again = False
                self._step(stream)
        except Exception as error:  # noqa: BLE001 - handed to the request as a typed error
            self._release(stream)
            stream.outlet.fail(as_omni_error(self.name, error))
        finally:
            stream.busy = False

    def _step(self, stream: _Collection) -> None:
        for name, edge in stream.sources.items():
            if edge.error is not None:
                raise edge.error
            while edge.items and stream.outlet.room and stream.alive:
                self._stats.items_total += 1
                self._emit(stream, self._stage.add(stream.state, edge.take(), name))
        if stream.alive and all(edge.drained for edge in stream.sources.values()):
            self._emit(stream, self._stage.result(stream.state))
            self._release(stream)
            stream.outlet.end()

    def _emit(self, stream: _Collection, outputs: Iterable[Any]) -> None:
        for output in outputs:
            stream.outlet.put(output)

    def _release(self, stream: _Collection) -> None:
        stream.alive = False
        for edge in stream.sources.values():
            edge.close()
        self._open.pop(stream.request_id, None)

    def cancel(self, request_id: str) -> None:
        stream = self._open.get(request_id)
        if stream is not None:
            self._release(stream)

    def stats(self) -> StageStats:
        self._stats.streams = len(self._open)
        self._stats.queued = sum(len(edge.items) for stream in self._open.values() for edge in stream.sources.values())
        return self._stats

    async def close(self) -> None:
        for request_id in list(self._open):
            self.cancel(request_id)
        self._stage.close()
