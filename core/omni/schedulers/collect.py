"""Collect: joins the items of a request, inline on the event loop."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from omni.schedulers.base import Stream, StreamsByRequest
from omni.stages import Aggregator
from omni.transports.base import Outlet
from omni.transports.inproc import Edge

_UNOPENED = object()


class _Collection(Stream):
    __slots__ = ("state",)

    def __init__(self, request_id: str, sources: Mapping[str, Edge], outlet: Outlet) -> None:
        super().__init__(request_id, sources, outlet)
        self.state: Any = _UNOPENED


class CollectScheduler(StreamsByRequest):
    """Runs an :class:`Aggregator`; no threads, no queue of its own."""

    stream_type = _Collection
    _stage: Aggregator[Any, Any, Any]

    def _pump(self, stream: _Collection) -> None:
        if not stream.alive:
            return
        try:
            self._collect(stream)
        except Exception as error:  # noqa: BLE001 - handed to the request as a typed error
            self._fail(stream, error)

    def _collect(self, stream: _Collection) -> None:
        if stream.state is _UNOPENED:
            stream.state = self._stage.open()
        for name, edge in stream.sources.items():
            if edge.error is not None:
                raise edge.error
            while stream.alive and edge.items and stream.outlet.room:
                self._stats.items_total += 1
                self._stats.steps_total += 1
                self._emit(stream, self._stage.add(stream.state, edge.take(), name))
        if stream.alive and all(edge.drained for edge in stream.sources.values()):
            self._emit(stream, self._stage.result(stream.state))
            if stream.alive:
                self._finish(stream)

    def _emit(self, stream: _Collection, outputs: Iterable[Any]) -> None:
        for output in outputs:
            if not stream.alive:
                return
            self._put(stream, output)
