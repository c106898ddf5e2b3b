"""Pool: worker threads for stages that work on one item at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import islice
from time import perf_counter
from typing import Any

from omni.errors import OmniError
from omni.schedulers import worker
from omni.schedulers.base import Stream, ThreadedScheduler
from omni.schedulers.worker import Mailbox
from omni.stages import Preprocess, PreprocessOptions
from omni.transports.base import Outlet
from omni.transports.inproc import Edge


class _PoolStream(Stream):
    __slots__ = ("iterator",)

    def __init__(self, request_id: str, sources: Mapping[str, Edge], outlet: Outlet) -> None:
        super().__init__(request_id, sources, outlet)
        self.iterator: Iterator[Any] | None = None


class PoolScheduler(ThreadedScheduler):
    """Runs :meth:`Preprocess.process`; one thread at a time works for a request, so order is kept.

    A job goes on as long as downstream had room when it began and its turn lasts, then gives its thread back.
    """

    stream_type = _PoolStream
    _stage: Preprocess[Any, Any]

    def __init__(self, stage: Preprocess[Any, Any], mailbox: Mailbox) -> None:
        assert isinstance(stage.options, PreprocessOptions)
        super().__init__(stage, mailbox, stage.options.workers)

    def _pump(self, stream: _PoolStream) -> None:
        if not stream.alive:
            return
        edge = stream.edge
        if edge.error is not None:
            self._fail(stream, edge.error)
        elif stream.busy:
            return
        elif stream.iterator is not None or edge.items:
            if room := stream.outlet.room:
                self._start(stream, room)
        elif edge.ended:
            self._finish(stream)

    def _start(self, stream: _PoolStream, room: int) -> None:
        stream.busy = True
        self._stats.running += 1
        # Those that a turn may get to wait in the edge until it has.
        items = list(islice(stream.edge.items, room))
        taken = 0
        if stream.iterator is None:
            stream.edge.take()
            taken = 1
        self._workers.submit(partial(self._work, stream, items, room), partial(self._done, stream, taken))

    def _work(self, stream: _PoolStream, items: list[Any], room: int) -> int:
        """In a worker thread: at most ``room`` outputs; gives the number of items that were begun."""
        end = perf_counter() + worker.TURN
        begun = sent = 0
        while stream.alive and sent < room:
            if stream.iterator is not None:
                try:
                    value = next(stream.iterator)
                except StopIteration:
                    stream.iterator = None
                    continue
            elif begun < len(items):
                begun += 1
                value = self._stage.process(items[begun - 1])
                if isinstance(value, Iterator):
                    stream.iterator = value
                    continue
            else:
                break
            sent += 1
            self._mail.post(self._emit, stream, value)
            if perf_counter() >= end:
                break
        return begun

    def _emit(self, stream: _PoolStream, value: Any) -> None:
        if stream.alive:
            self._put(stream, value)

    def _done(self, stream: _PoolStream, taken: int, begun: int | OmniError) -> None:
        stream.busy = False
        self._stats.running -= 1
        if isinstance(begun, OmniError):
            stream.iterator = None
            self._fail(stream, begun)
            return
        self._stats.items_total += begun
        self._stats.steps_total += begun
        if stream.alive:
            for _ in range(begun - taken):
                stream.edge.take()
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
            self._workers.submit(close, _ignore)


def _ignore(result: Any) -> None:
    """No request is left to tell; what went wrong has been logged."""
