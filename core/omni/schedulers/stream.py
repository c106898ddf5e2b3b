"""Stream: stateful steps, batched across streams, with a chunk-size policy."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from functools import partial
from typing import Any

from omni.errors import OmniError, StageFailed
from omni.schedulers.base import BatchingScheduler, Stream
from omni.schedulers.worker import Mailbox, as_omni_error
from omni.stages import DecodeJob, Decoder, DecoderOptions
from omni.transports.base import Outlet
from omni.transports.inproc import Edge

_UNOPENED = object()


class _DecodeStream(Stream):
    __slots__ = ("chunk", "queued", "state")

    def __init__(self, request_id: str, sources: Mapping[str, Edge], outlet: Outlet) -> None:
        super().__init__(request_id, sources, outlet)
        self.state: Any = _UNOPENED
        self.chunk = 0.0
        self.queued = False


class _Step:
    """One stream's part of a batch; ``outputs`` is an error when the step ended its stream."""

    __slots__ = ("items", "last", "outputs", "stream")

    def __init__(self, stream: _DecodeStream, items: list[Any], last: bool) -> None:
        self.stream = stream
        self.items = items
        self.last = last
        self.outputs: list[Any] | OmniError = []


class StreamScheduler(BatchingScheduler):
    """Runs :meth:`Decoder.decode`. A stream is in at most one batch at a time; a stream whose consumer has no room
    is left out of batches until it has."""

    stream_type = _DecodeStream
    _stage: Decoder[Any, Any]

    def __init__(self, stage: Decoder[Any, Any], mailbox: Mailbox) -> None:
        assert isinstance(stage.options, DecoderOptions)
        self._options = stage.options
        super().__init__(stage, mailbox, self._options.workers, self._options.workers)
        self.input_capacity = max(self._options.first_chunk, self._options.max_chunk)
        self._ready: deque[_DecodeStream] = deque()
        # A turn in a thread for nothing would be the dearest part of a short request.
        self._discards = getattr(stage.discard, "__func__", None) is not Decoder.discard

    def _pump(self, stream: _DecodeStream) -> None:
        if not stream.alive:
            return
        edge = stream.edge
        if edge.error is not None:
            self._fail(stream, edge.error)
        elif stream.busy or stream.queued:
            return
        elif edge.drained and stream.state is _UNOPENED:
            self._finish(stream)
        elif (edge.ended or len(edge.items) >= self._chunk(stream)) and stream.outlet.room:
            stream.queued = True
            self._ready.append(stream)
            if self._free:
                self._dispatch_soon()

    def _chunk(self, stream: _DecodeStream) -> int:
        """Items that the next step of a stream takes."""
        return int(stream.chunk) or self._options.first_chunk

    def _dispatch(self) -> None:
        while self._free and self._ready:
            batch: list[_Step] = []
            while self._ready and len(batch) < self._options.max_batch:
                stream = self._ready.popleft()
                stream.queued = False
                if stream.alive:
                    batch.append(self._step(stream))
            if batch:
                self._free -= 1
                self._stats.running += len(batch)
                self._workers.submit(partial(self._decode, batch), partial(self._done, batch))

    def _step(self, stream: _DecodeStream) -> _Step:
        stream.busy = True
        edge = stream.edge
        size = self._chunk(stream)
        stream.chunk = min(float(self.input_capacity), (stream.chunk or size) * self._options.chunk_growth)
        items = [edge.take() for _ in range(min(size, len(edge.items)))]
        self._stats.items_total += len(items)
        return _Step(stream, items, edge.drained)

    def _decode(self, batch: list[_Step]) -> None:
        """In a worker thread: fills in the outputs of every step."""
        live: list[_Step] = []
        for step in batch:
            stream = step.stream
            if not stream.alive:
                continue
            if stream.state is _UNOPENED:
                try:
                    stream.state = self._stage.open(step.items[0])
                except Exception as error:  # noqa: BLE001 - handed to the request as a typed error
                    step.outputs = as_omni_error(self.name, error)
                    continue
            live.append(step)
        if not live:
            return
        try:
            results = self._stage.decode([DecodeJob(step.stream.state, step.items, step.last) for step in live])
            outputs = [list(result) for result in results]
            if len(outputs) != len(live):
                raise StageFailed(f"stage {self.name!r} gave {len(outputs)} results for a batch of {len(live)} streams")
        except Exception as error:  # noqa: BLE001 - the states of the batch are unknown: all its streams fail
            failure = as_omni_error(self.name, error)
            for step in live:
                step.outputs = failure
        else:
            for step, output in zip(live, outputs, strict=True):
                step.outputs = output

    def _done(self, batch: list[_Step], result: Any) -> None:
        self._free += 1
        self._stats.running -= len(batch)
        self._stats.steps_total += 1
        self._dispatch_soon()
        for step in batch:
            stream = step.stream
            stream.busy = False
            outputs = result if isinstance(result, OmniError) else step.outputs
            if not stream.alive:
                self._discard(stream)
            elif isinstance(outputs, OmniError):
                self._fail(stream, outputs)
            else:
                self._deliver(stream, outputs, step.last)

    def _deliver(self, stream: _DecodeStream, outputs: list[Any], last: bool) -> None:
        for output in outputs:
            if stream.alive:
                self._put(stream, output)
        if last and stream.alive:
            self._finish(stream)
        else:
            self._pump(stream)

    def _discard(self, stream: _DecodeStream) -> None:
        if stream.busy or stream.state is _UNOPENED:
            return
        state, stream.state = stream.state, _UNOPENED
        if self._discards:
            self._workers.submit(partial(self._stage.discard, state), _ignore)


def _ignore(result: Any) -> None:
    """No request is left to tell; what went wrong has been logged."""
