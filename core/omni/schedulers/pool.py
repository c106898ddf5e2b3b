"""Pool: worker threads for stages that work on one item at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from omni.schedulers.base import Stream, ThreadedScheduler
from omni.schedulers.worker import Mailbox
from omni.stages import Preprocess, PreprocessOptions
from omni.transports.base import Outlet
from omni.transports.inproc import Edge


class _PoolStream(Stream):
    __slots__ = ("iterator",)

    def __init__(self, request_id: str, edge: Edge, outlet: Outlet) -> None:
        super().__init__(request_id, edge, outlet)
        self.iterator: Iterator[Any] | None = None


class PoolScheduler(ThreadedScheduler):
    """Runs :meth:`Preprocess.process`; one thread at a time works for a request, so order is kept.

    An iterator is advanced for as many items as downstream has room for, then gives its thread back.
    """

    _stage: Preprocess[Any, Any]

    def __init__(self, stage: Preprocess[Any, Any], mailbox: Mailbox) -> None:
        assert isinstance(stage.options, PreprocessOptions)
        super().__init__(stage, mailbox, stage.options.workers)

    def open(self, request_id: str, sources: Mapping[str, Edge], outlet: Outlet) -> None:
        (edge,) = sources.values()
        stream = _PoolStream(request_id, edge, outlet)
        self._streams[request_id] = stream

        def pump() -> None:
            self._pump(stream)

        edge.on_item = pump
        outlet.on_room(pump)
        pump()

    def _pump(self, stream: _PoolStream) -> None:
        if stream.busy or not stream.alive:
            return
        edge = stream.edge
        if edge.error is not None:
            self._fail(stream, edge.error)
        elif stream.iterator is not None or edge.items:
            if room := stream.outlet.room:
                # Busy before the take: it can wake the producer, whose next item comes back into here.
                stream.busy = True
                item = edge.take() if stream.iterator is None else None
                self._start(stream, item, room)
        elif edge.ended:
            self._finish(stream)

    def _start(self, stream: _PoolStream, item: Any, room: int) -> None:
        self._stats.running += 1

        def job() -> None:
            error: BaseException | None = None
            try:
                self._work(stream, item, room)
            except Exception as caught:  # noqa: BLE001 - handed to the request as a typed error
                error = caught
            self._mail.post(self._done, stream, error)

        self._workers.submit(job)

    def _work(self, stream: _PoolStream, item: Any, room: int) -> None:
        """In a worker thread: at most ``room`` items."""
        if not stream.alive:
            return
        if stream.iterator is None:
            result = self._stage.process(item)
            if not isinstance(result, Iterator):
                self._mail.post(stream.outlet.put, result)
                return
            stream.iterator = result
        for _ in range(room):
            if not stream.alive:
                return
            try:
                value = next(stream.iterator)
            except StopIteration:
                stream.iterator = None
                return
            self._mail.post(stream.outlet.put, value)

    def _done(self, stream: _PoolStream, error: BaseException | None) -> None:
        stream.busy = False
        self._stats.running -= 1
        self._stats.steps_total += 1
        if error is not None:
            stream.iterator = None
            self._fail(stream, error)
        elif stream.alive:
            self._stats.items_total += 1
            self._pump(stream)
        else:
            self._discard(stream)

    def _discard(self, stream: _PoolStream) -> None:
        # A generator must be closed by a thread that is not inside it.
        if stream.busy or stream.iterator is None:
            return
        iterator, stream.iterator = stream.iterator, None
        close = getattr(iterator, "close", None)
        if close is not None:
            self._workers.submit(close)
