"""Batch: dynamic batches over the items of many requests, with a cache by content and single flight."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from omni.errors import OmniError, StageFailed
from omni.schedulers.base import Stream, ThreadedScheduler
from omni.schedulers.cache import ResultCache, content_key, content_salt
from omni.schedulers.worker import Mailbox, as_omni_error
from omni.stages import Encoder, EncoderOptions
from omni.transports.base import Outlet
from omni.transports.inproc import Edge


class _Job:
    """One item on its way: its place in its request, its cache key (None: not cached)."""

    __slots__ = ("index", "item", "key", "since", "stream")

    def __init__(self, stream: _BatchStream, index: int, item: Any, since: float) -> None:
        self.stream = stream
        self.index = index
        self.item = item
        self.since = since
        self.key: bytes | None = None


class _BatchStream(Stream):
    """Results come back in any order and leave in the order of their items."""

    __slots__ = ("done", "emitted", "taken")

    def __init__(self, request_id: str, edge: Edge, outlet: Outlet) -> None:
        super().__init__(request_id, edge, outlet)
        self.taken = 0
        self.emitted = 0
        self.done: dict[int, Any] = {}

    @property
    def can_take(self) -> bool:
        """Whatever is taken must find room downstream when it is done."""
        return self.alive and bool(self.edge.items) and self.outlet.room > self.taken - self.emitted


class BatchScheduler(ThreadedScheduler):
    """Runs :meth:`Encoder.encode`. Requests take turns item by item, so a long one does not starve a short one."""

    _stage: Encoder[Any, Any]

    def __init__(self, stage: Encoder[Any, Any], mailbox: Mailbox) -> None:
        assert isinstance(stage.options, EncoderOptions)
        self._options = stage.options
        super().__init__(stage, mailbox, self._options.workers)
        self._loop = asyncio.get_running_loop()
        self._ready: deque[_BatchStream] = deque()
        self._waiting: deque[_Job] = deque()
        self._free = self._options.workers
        self._timer: asyncio.TimerHandle | None = None
        self._cache = ResultCache(int(self._options.cache_mb * 1e6)) if self._options.cache_mb else None
        self._salt = content_salt(stage)
        self._flights: dict[bytes, list[_Job]] = {}

    def open(self, request_id: str, sources: Mapping[str, Edge], outlet: Outlet) -> None:
        (edge,) = sources.values()
        stream = _BatchStream(request_id, edge, outlet)
        self._streams[request_id] = stream

        def pump() -> None:
            self._pump(stream)

        edge.on_item = pump
        outlet.on_room(pump)
        pump()

    def _pump(self, stream: _BatchStream) -> None:
        if not stream.alive:
            return
        if stream.edge.error is not None:
            self._fail(stream, stream.edge.error)
            return
        if stream.edge.drained and stream.emitted == stream.taken:
            self._finish(stream)
            return
        if stream.can_take and not stream.busy:
            # ``busy`` here: already in line for its turn.
            stream.busy = True
            self._ready.append(stream)
        self._dispatch()

    def _take_turns(self) -> None:
        """Move items of ready requests, one each in turn, into the waiting line until a batch is full."""
        while self._ready and len(self._waiting) < self._options.max_batch:
            stream = self._ready.popleft()
            if stream.can_take:
                stream.taken += 1
                job = _Job(stream, stream.taken - 1, stream.edge.take(), self._loop.time())
                if self._cache is None:
                    self._waiting.append(job)
                else:
                    self._look_up(job)
            stream.busy = stream.can_take
            if stream.busy:
                self._ready.append(stream)

    def _dispatch(self) -> None:
        while self._free:
            self._take_turns()
            batch_is_full = len(self._waiting) >= self._options.max_batch
            if not self._waiting or not (batch_is_full or self._has_waited()):
                return
            batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), self._options.max_batch))]
            batch = [job for job in batch if self._is_wanted(job)]
            if batch:
                self._run(batch)

    def _is_wanted(self, job: _Job) -> bool:
        """Whether anyone still waits for a job's result; a flight without passengers is called off."""
        if job.key is None:
            return job.stream.alive
        if any(passenger.stream.alive for passenger in self._flights[job.key]):
            return True
        del self._flights[job.key]
        return False

    def _has_waited(self) -> bool:
        """Whether the oldest item has waited long enough; sets the timer when it has not."""
        due = self._waiting[0].since + self._options.max_wait_ms / 1e3
        if self._loop.time() >= due:
            return True
        if self._timer is None:
            self._timer = self._loop.call_at(due, self._on_timer)
        return False

    def _on_timer(self) -> None:
        self._timer = None
        self._dispatch()

    def _run(self, batch: list[_Job]) -> None:
        self._free -= 1
        self._stats.running += len(batch)

        def job() -> None:
            self._mail.post(self._done, batch, self._encode([entry.item for entry in batch]))

        self._workers.submit(job)

    def _encode(self, items: Sequence[Any]) -> Sequence[Any]:
        """Results or errors, one per item. A batch that fails as a whole is tried again item by item, so that only
        the request at fault fails."""
        try:
            results = self._stage.encode(items)
            if len(results) != len(items):
                raise StageFailed(f"stage {self.name!r} gave {len(results)} results for a batch of {len(items)} items")
            return results
        except Exception as error:  # noqa: BLE001 - handed to the request as a typed error
            if len(items) == 1:
                return [as_omni_error(self.name, error)]
            return [self._encode([item])[0] for item in items]

    def _done(self, batch: list[_Job], results: Sequence[Any]) -> None:
        self._free += 1
        self._stats.running -= len(batch)
        self._stats.steps_total += 1
        for job, result in zip(batch, results, strict=True):
            if job.key is None:
                self._settle(job, result)
            else:
                self._land(job.key, result)
        self._dispatch()

    def _settle(self, job: _Job, result: Any) -> None:
        stream = job.stream
        if not stream.alive:
            return
        if isinstance(result, OmniError):
            self._fail(stream, result)
            return
        stream.done[job.index] = result
        while stream.emitted in stream.done:
            value = stream.done.pop(stream.emitted)
            stream.emitted += 1
            self._stats.items_total += 1
            stream.outlet.put(value)
        self._pump(stream)

    # The way through the cache: key (in a thread) -> hit, or join the flight of the same key, or start one.

    def _look_up(self, job: _Job) -> None:
        def work() -> None:
            try:
                part = self._stage.key(job.item)
                key = None if part is None else content_key(self._salt, part)
            except Exception as error:  # noqa: BLE001 - handed to the request as a typed error
                self._mail.post(self._settle, job, as_omni_error(self.name, error))
                return
            self._mail.post(self._looked_up, job, key)

        self._workers.submit(work)

    def _looked_up(self, job: _Job, key: bytes | None) -> None:
        assert self._cache is not None
        if key is not None:
            if (hit := self._cache.get(key)) is not None:
                self._stats.cache_hits_total += 1
                self._settle(job, hit)
                return
            if key in self._flights:
                self._flights[key].append(job)
                return
            self._flights[key] = [job]
            job.key = key
        self._waiting.append(job)
        self._dispatch()

    def _land(self, key: bytes, result: Any) -> None:
        assert self._cache is not None
        passengers = self._flights.pop(key)
        if not isinstance(result, OmniError):
            self._cache.put(key, result)
            self._stats.cache_bytes = self._cache.bytes
        self._settle(passengers[0], result)
        for job in passengers[1:]:
            if isinstance(result, OmniError):
                self._settle(job, result)
            else:
                self._stats.cache_hits_total += 1
                copy = self._cache.get(key)
                self._settle(job, result if copy is None else copy)
