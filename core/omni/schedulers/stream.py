"""Stream: stateful steps, batched across streams, with a chunk-size policy."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple

from omni.errors import OmniError, StageFailed
from omni.schedulers import worker
from omni.schedulers.base import BatchingScheduler, Stream
from omni.schedulers.worker import Mailbox, as_omni_error
from omni.stages import DecodeJob, Decoder, DecoderOptions
from omni.transports.base import Outlet
from omni.transports.inproc import Edge

_UNOPENED = object()


class _DecodeStream(Stream):
    """``chunk``: how many items the next step takes, before rounding; 0: the first one."""

    __slots__ = ("chunk", "queued", "state")

    def __init__(self, request_id: str, sources: Mapping[str, Edge], outlet: Outlet) -> None:
        super().__init__(request_id, sources, outlet)
        self.state: Any = _UNOPENED
        self.chunk = 0.0
        self.queued = False


class _Chunk(NamedTuple):
    """The items of one step. ``following``: the stream's ``chunk`` after it."""

    items: list[Any]
    last: bool
    following: float


class _Turn:
    """One stream's part of a job: the chunk that was taken for it, and those behind it, which wait in the edge until
    the job has got to them. ``outcome`` is None, or the error that ends the stream."""

    __slots__ = ("chunks", "done", "outcome", "room", "sent", "stream")

    def __init__(self, stream: _DecodeStream, chunks: list[_Chunk], room: int) -> None:
        self.stream = stream
        self.chunks = chunks
        self.room = room
        self.done = 0
        self.sent = 0
        self.outcome: OmniError | None = None

    @property
    def chunk(self) -> _Chunk:
        return self.chunks[self.done]

    @property
    def goes_on(self) -> bool:
        open_ended = self.outcome is None and self.done < len(self.chunks)
        return open_ended and self.sent < self.room and self.stream.alive


class StreamScheduler(BatchingScheduler):
    """Runs :meth:`Decoder.decode`. A stream is in at most one batch at a time; a stream whose consumer has no room
    is left out of batches until it has.

    A job goes on with its streams' next chunks while its turn lasts: cheap steps share the way to a thread and back.
    """

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
        elif (edge.ended or len(edge.items) >= self._size(stream.chunk)) and stream.outlet.room:
            stream.queued = True
            self._ready.append(stream)
            if self._free:
                self._dispatch_soon()

    def _size(self, chunk: float) -> int:
        return int(chunk) or self._options.first_chunk

    def _dispatch(self) -> None:
        while self._free and self._ready:
            turns: list[_Turn] = []
            while self._ready and len(turns) < self._options.max_batch:
                stream = self._ready.popleft()
                stream.queued = False
                if stream.alive and (room := stream.outlet.room):
                    turns.append(self._turn(stream, room))
            if turns:
                self._free -= 1
                self._stats.running += len(turns)
                self._workers.submit(partial(self._work, turns), partial(self._done, turns))

    def _turn(self, stream: _DecodeStream, room: int) -> _Turn:
        stream.busy = True
        chunks = self._plan(stream, room)
        self._take(stream, chunks[:1])
        return _Turn(stream, chunks, room)

    def _plan(self, stream: _DecodeStream, most: int) -> list[_Chunk]:
        """What the next steps of a stream take of the items that are here, by the chunk policy."""
        items, ended = list(stream.edge.items), stream.edge.ended
        chunks: list[_Chunk] = []
        start, chunk = 0, stream.chunk
        while len(chunks) < most:
            size = self._size(chunk)
            end = min(start + size, len(items))
            whole = end - start == size or (ended and end > start)
            if chunks and not whole:
                break
            chunk = min(float(self.input_capacity), (chunk or size) * self._options.chunk_growth)
            chunks.append(_Chunk(items[start:end], ended and end == len(items), chunk))
            start = end
        return chunks

    def _take(self, stream: _DecodeStream, chunks: list[_Chunk]) -> None:
        for chunk in chunks:
            stream.chunk = chunk.following
            self._stats.items_total += len(chunk.items)
            for _ in chunk.items:
                stream.edge.take()

    def _work(self, turns: list[_Turn]) -> None:
        """In a worker thread: the next step of every stream, and again while the turn lasts."""
        end = perf_counter() + worker.TURN
        while going := [turn for turn in turns if turn.goes_on]:
            opened = [turn for turn in going if self._is_open(turn)]
            if opened:
                self._mail.post(self._deliver, opened, self._decode(opened))
            if perf_counter() >= end:
                break

    def _is_open(self, turn: _Turn) -> bool:
        """In a worker thread: opens a new stream; False when that has failed."""
        if turn.stream.state is _UNOPENED:
            try:
                turn.stream.state = self._stage.open(turn.chunk.items[0])
            except Exception as error:  # noqa: BLE001 - handed to the request as a typed error
                turn.outcome = as_omni_error(self.name, error)
        return turn.outcome is None

    def _decode(self, turns: list[_Turn]) -> list[list[Any]]:
        """In a worker thread: one step; the outputs by stream, none where it has ended in an error."""
        jobs = [DecodeJob(turn.stream.state, turn.chunk.items, turn.chunk.last) for turn in turns]
        results: list[list[Any] | OmniError]
        try:
            results = [r if isinstance(r, OmniError) else list(r) for r in self._stage.decode(jobs)]
            if len(results) != len(jobs):
                raise StageFailed(f"stage {self.name!r} gave {len(results)} results for a batch of {len(jobs)} streams")
        except Exception as error:  # noqa: BLE001 - the states of the batch are unknown: all its streams fail
            results = [as_omni_error(self.name, error)] * len(jobs)
        outputs: list[list[Any]] = []
        for turn, result in zip(turns, results, strict=True):
            turn.done += 1
            if isinstance(result, OmniError):
                turn.outcome, result = result, []
            turn.sent += len(result)
            outputs.append(result)
        return outputs

    def _deliver(self, turns: list[_Turn], results: list[list[Any]]) -> None:
        self._stats.steps_total += 1
        for turn, outputs in zip(turns, results, strict=True):
            for output in outputs:
                if turn.stream.alive:
                    self._put(turn.stream, output)

    def _done(self, turns: list[_Turn], result: OmniError | None) -> None:
        self._free += 1
        self._stats.running -= len(turns)
        self._dispatch_soon()
        for turn in turns:
            stream = turn.stream
            stream.busy = False
            error = turn.outcome or result
            if not stream.alive:
                self._discard(stream)
            elif error is not None:
                self._fail(stream, error)
            else:
                self._take(stream, turn.chunks[1 : turn.done])
                if turn.chunks[turn.done - 1].last:
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
