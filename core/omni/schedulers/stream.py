"""Stream: stateful steps, batched across streams, with a chunk-size policy."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from omni.errors import OmniError, StageFailed
from omni.schedulers.base import Stream, ThreadedScheduler
from omni.schedulers.worker import Mailbox, as_omni_error
from omni.stages import DecodeJob, Decoder, DecoderOptions
from omni.transports.base import Outlet
from omni.transports.inproc import Edge

_UNOPENED = object()


class _DecodeStream(Stream):
    __slots__ = ("chunk", "exact", "queued", "state")

    def __init__(self, request_id: str, edge: Edge, outlet: Outlet, first_chunk: int) -> None:
        super().__init__(request_id, edge, outlet)
        self.state: Any = _UNOPENED
        self.chunk = first_chunk
        self.exact = float(first_chunk)
        self.queued = False


class _Step:
    """One stream's part of a batch."""

    __slots__ = ("items", "last", "stream")

    def __init__(self, stream: _DecodeStream, items: list[Any], last: bool) -> None:
        self.stream = stream
        self.items = items
        self.last = last


class StreamScheduler(ThreadedScheduler):
    """Runs :meth:`Decoder.decode`. A stream is in at most one batch at a time; a stream whose consumer has no room
    is left out of batches until it has."""

    _stage: Decoder[Any, Any]

    def __init__(self, stage: Decoder[Any, Any], mailbox: Mailbox) -> None:
        assert isinstance(stage.options, DecoderOptions)
        self._options = stage.options
        super().__init__(stage, mailbox, self._options.workers)
        self.input_capacity = max(self._options.first_chunk, self._options.max_chunk)
        self._ready: deque[_DecodeStream] = deque()
        self._free = self._options.workers

    def open(self, request_id: str, sources: Mapping[str, Edge], outlet: Outlet) -> None:
        (edge,) = sources.values()
        stream = _DecodeStream(request_id, edge, outlet, self._options.first_chunk)
        self._streams[request_id] = stream

        def pump() -> None:
            self._pump(stream)

        edge.on_item = pump
        outlet.on_room(pump)
        pump()

    def _pump(self, stream: _DecodeStream) -> None:
        if not stream.alive or stream.busy:
            return
        edge = stream.edge
        if edge.error is not None:
            self._fail(stream, edge.error)
        elif edge.drained and stream.state is _UNOPENED:
            self._finish(stream)
        elif (len(edge.items) >= stream.chunk or edge.ended) and stream.outlet.room and not stream.queued:
            stream.queued = True
            self._ready.append(stream)
            self._dispatch()

    def _dispatch(self) -> None:
        while self._free and self._ready:
            batch: list[_Step] = []
            while self._ready and len(batch) < self._options.max_batch:
                stream = self._ready.popleft()
                stream.queued = False
                if stream.alive and stream.edge.error is None:
                    # Busy before the takes: they can wake the producer, whose item comes back into _pump.
                    stream.busy = True
                    items = [stream.edge.take() for _ in range(min(stream.chunk, len(stream.edge.items)))]
                    batch.append(_Step(stream, items, stream.edge.drained))
                    self._grow(stream)
            if batch:
                self._run(batch)

    def _grow(self, stream: _DecodeStream) -> None:
        limit = float(max(self._options.max_chunk, self._options.first_chunk))
        stream.exact = min(limit, stream.exact * self._options.chunk_growth)
        stream.chunk = int(stream.exact)

    def _run(self, batch: list[_Step]) -> None:
        self._free -= 1
        self._stats.running += len(batch)

        def job() -> None:
            self._mail.post(self._done, batch, self._decode(batch))

        self._workers.submit(job)

    def _decode(self, batch: list[_Step]) -> list[Any]:
        """In a worker thread: per step a sequence of outputs, or the error that ends its stream."""
        results: list[Any] = [()] * len(batch)
        jobs: list[DecodeJob] = []
        places: list[int] = []
        for place, step in enumerate(batch):
            stream = step.stream
            if not stream.alive:
                continue
            if stream.state is _UNOPENED:
                try:
                    stream.state = self._stage.open(step.items[0])
                except Exception as error:  # noqa: BLE001 - handed to the request as a typed error
                    results[place] = as_omni_error(self.name, error)
                    continue
            jobs.append(DecodeJob(stream.state, step.items, step.last))
            places.append(place)
        try:
            outputs: Sequence[Any] = self._stage.decode(jobs) if jobs else ()
            if len(outputs) != len(jobs):
                raise StageFailed(f"stage {self.name!r} gave {len(outputs)} results for a batch of {len(jobs)} streams")
        except Exception as error:  # noqa: BLE001 - the states of the batch are unknown: all its streams fail
            outputs = [as_omni_error(self.name, error)] * len(jobs)
        for place, output in zip(places, outputs, strict=True):
            results[place] = output
        return results

    def _done(self, batch: list[_Step], results: list[Any]) -> None:
        self._free += 1
        self._stats.running -= len(batch)
        self._stats.steps_total += 1
        for step, result in zip(batch, results, strict=True):
            stream = step.stream
            stream.busy = False
            if not stream.alive:
                self._discard(stream)
                continue
            if isinstance(result, OmniError):
                self._fail(stream, result)
                continue
            self._stats.items_total += len(step.items)
            for output in result:
                stream.outlet.put(output)
            if step.last and stream.alive:
                self._finish(stream)
            else:
                self._pump(stream)
        self._dispatch()

    def _discard(self, stream: _DecodeStream) -> None:
        if stream.busy or stream.state is _UNOPENED:
            return
        state, stream.state = stream.state, _UNOPENED

        def job() -> None:
            try:
                self._stage.discard(state)
            except Exception as error:  # noqa: BLE001 - no request is left to tell: it goes to the log
                as_omni_error(self.name, error)

        self._workers.submit(job)
