"""Pool: worker threads for stages that work on one item at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from omni.errors import OmniError
from omni.schedulers.base import Stream, ThreadedScheduler
from omni.schedulers.worker import Mailbox
from omni.stages import Preprocess, PreprocessOptions
from omni.transports.base import Outlet
from omni.transports.inproc import Edge

_NO_ITEM = object()


class _PoolStream(Stream):
    __slots__ = ("iterator",)

    def __init__(self, request_id: str, sources: Mapping[str, Edge], outlet: Outlet) -> None:
        super().__init__(request_id, sources, outlet)
        self.iterator: Iterator[Any] | None = None


class PoolScheduler(ThreadedScheduler):
    """Runs :meth:`Preprocess.process`; one thread at a time works for a request, so order is kept.

    An iterator is advanced for as many items as downstream has room for, then gives its thread back.
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
        elif stream.iterator is not None:
            if room := stream.outlet.room:
                self._start(stream, _NO_ITEM, room)
        elif edge.items:
            if room := stream.outlet.room:
                self._stats.items_total += 1
                self._start(stream, edge.take(), room)
        elif edge.ended:
            self._finish(stream)

    def _start(self, stream: _PoolStream, item: Any, room: int) -> None:
        stream.busy = True
        self._stats.running += 1
        self._workers.submit(partial(self._work, stream, item, room), partial(self._done, stream))

    def _work(self, stream: _PoolStream, item: Any, room: int) -> None:
        """In a worker thread: at most ``room`` outputs."""
        if item is not _NO_ITEM and stream.alive:
            result = self._stage.process(item)
            if not isinstance(result, Iterator):
                self._mail.post(self._emit, stream, result)
                return
            stream.iterator = result
        # Only the stage's own thread touches the iterator while the stream is busy.
        iterator = stream.iterator
        for _ in range(room):
            if iterator is None or not stream.alive:
                return
            try:
                value = next(iterator)
            except StopIteration:
                stream.iterator = None
                return
            self._mail.post(self._emit, stream, value)

    def _emit(self, stream: _PoolStream, value: Any) -> None:
        if stream.alive:
            self._put(stream, value)

    def _done(self, stream: _PoolStream, result: Any) -> None:
        stream.busy = False
        self._stats.running -= 1
        self._stats.steps_total += 1
        if isinstance(result, OmniError):
            stream.iterator = None
            self._fail(stream, result)
        elif stream.alive:
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
