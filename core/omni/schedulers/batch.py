"""Batch: dynamic batches over the items of many requests, with a cache by content and single flight."""

from __future__ import annotations

import asyncio
from bisect import insort
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from operator import attrgetter
from typing import Any

from omni.errors import OmniError, StageFailed
from omni.schedulers.base import BatchingScheduler, StageStats, Stream
from omni.schedulers.cache import Frozen, ResultCache, content_key, content_salt
from omni.schedulers.worker import Mailbox, as_omni_error
from omni.stages import Encoder, EncoderOptions
from omni.transports.base import Outlet
from omni.transports.inproc import Edge


class _BatchStream(Stream):
    """Results come back in any order and leave in the order of their items."""

    __slots__ = ("done", "emitted", "in_line", "taken", "turn")

    def __init__(self, request_id: str, sources: Mapping[str, Edge], outlet: Outlet) -> None:
        super().__init__(request_id, sources, outlet)
        self.taken = self.emitted = 0
        self.done: dict[int, Any] = {}
        self.in_line = False
        self.turn = 0.0

    @property
    def can_take(self) -> bool:
        """Whatever is taken must find room downstream when it is done."""
        return self.alive and bool(self.edge.items) and self.outlet.room > self.taken - self.emitted


class _Job:
    """One item on its way: its place in its request, its cost, its cache key (None: not cached). ``turn``: what its
    request has had with it; who has had least goes first."""

    __slots__ = ("cost", "index", "item", "key", "since", "stream", "turn")

    def __init__(self, stream: _BatchStream, index: int, item: Any, since: float, cost: float) -> None:
        self.stream = stream
        self.index = index
        self.item = item
        self.since = since
        self.cost = cost
        self.turn = 0.0
        self.key: bytes | None = None


class BatchScheduler(BatchingScheduler):
    """Runs :meth:`Encoder.encode`. Requests take turns by what their items cost: a long one starves no short one."""

    stream_type = _BatchStream
    _stage: Encoder[Any, Any]

    def __init__(self, stage: Encoder[Any, Any], mailbox: Mailbox) -> None:
        assert isinstance(stage.options, EncoderOptions)
        self._options = options = stage.options
        self._cache = ResultCache(int(options.cache_mb * 1e6)) if options.cache_mb else None
        # One thread more makes keys, so that a hit does not wait behind a batch.
        threads = options.workers + (1 if self._cache is not None else 0)
        super().__init__(stage, mailbox, options.workers, threads)
        self._ready: deque[_BatchStream] = deque()
        self._waiting: list[_Job] = []
        self._turn = 0.0
        self._looking = 0
        self._timer: asyncio.TimerHandle | None = None
        self._salt = content_salt(stage)
        self._flights: dict[bytes, list[_Job]] = {}

    def _pump(self, stream: _BatchStream) -> None:
        if not stream.alive:
            return
        if stream.edge.error is not None:
            self._fail(stream, stream.edge.error)
        elif stream.edge.drained and stream.emitted == stream.taken:
            self._finish(stream)
        elif stream.can_take and not stream.in_line:
            stream.in_line = True
            self._ready.append(stream)
            self._dispatch_soon()

    def _dispatch(self) -> None:
        self._take_turns()
        while self._free and self._waiting and (self._is_full or self._has_waited()):
            self._start()
            self._take_turns()

    @property
    def _is_full(self) -> bool:
        fitting = self._fitting()
        return fitting >= self._options.max_batch or fitting < len(self._waiting)

    def _fitting(self) -> int:
        """How many of the waiting items are the next batch."""
        limit = self._options.max_cost or float("inf")
        totals = accumulate(job.cost for job in self._waiting[: self._options.max_batch])
        return max(sum(total <= limit for total in totals), min(1, len(self._waiting)))

    def _join_line(self, job: _Job) -> None:
        """Behind those whose requests have had less; one that comes counts as having had what is served now."""
        job.turn = job.stream.turn = max(job.stream.turn, self._turn) + job.cost
        insort(self._waiting, job, key=attrgetter("turn"))

    def _take_turns(self) -> None:
        """Move items of ready requests, one each in turn, into the waiting line until a batch is full. With a cache all
        are taken: a hit needs no place in a batch."""
        taken: list[_Job] = []
        while self._ready and (self._cache is not None or not self._is_full):
            stream = self._ready.popleft()
            if stream.can_take and (job := self._take(stream)) is not None:
                if self._cache is None:
                    self._join_line(job)
                else:
                    taken.append(job)
            stream.in_line = stream.can_take
            if stream.in_line:
                self._ready.append(stream)
        if taken:
            self._look_up(taken)

    def _take(self, stream: _BatchStream) -> _Job | None:
        item = stream.edge.take()
        try:
            job = _Job(stream, stream.taken, item, self._loop.time(), self._stage.cost(item))
        except Exception as error:  # noqa: BLE001 - handed to the request as a typed error
            self._fail(stream, error)
            return None
        stream.taken += 1
        self._stats.items_total += 1
        return job

    def _start(self) -> None:
        """Hand the first of the waiting items to a worker."""
        fitting = self._fitting()
        batch, self._waiting = self._waiting[:fitting], self._waiting[fitting:]
        self._turn = batch[-1].turn
        self._stop_timer()
        self._free -= 1
        self._stats.running += len(batch)
        self._workers.submit(partial(self._encode, batch), partial(self._done, batch))

    def _has_waited(self) -> bool:
        """Whether the oldest item has waited long enough; sets the timer when it has not."""
        due = min(job.since for job in self._waiting) + self._options.max_wait_ms / 1e3
        if self._loop.time() >= due:
            return True
        if self._timer is None:
            self._timer = self._loop.call_at(due, self._on_timer)
        return False

    def _on_timer(self) -> None:
        # A loop may be early by its clock's resolution, so there is no second look at the clock.
        self._timer = None
        if self._free and self._waiting:
            self._start()
        self._dispatch()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _encode(self, batch: Sequence[_Job]) -> list[Any]:
        """In a worker thread: per item a result, or the error that ends its request."""
        return [self._keep(job, result) for job, result in zip(batch, self._try(batch), strict=True)]

    def _try(self, batch: Sequence[_Job]) -> Sequence[Any]:
        """A batch that fails as a whole is tried again item by item, so that only the request at fault fails."""
        try:
            results = self._stage.encode([job.item for job in batch])
            if len(results) != len(batch):
                raise StageFailed(f"stage {self.name!r} gave {len(results)} results for a batch of {len(batch)} items")
            return results
        except BaseException as error:  # noqa: BLE001 - handed to the request as a typed error
            if len(batch) == 1:
                return [as_omni_error(self.name, error)]
            return [self._try([job])[0] for job in batch]

    def _done(self, batch: list[_Job], results: Any) -> None:
        self._free += 1
        self._stats.running -= len(batch)
        self._stats.steps_total += 1
        self._dispatch_soon()
        for job, result in zip(batch, results, strict=True):
            if job.key is None:
                self._settle(job, result)
            else:
                self._land(job.key, result)

    def _settle(self, job: _Job, result: Any) -> None:
        stream = job.stream
        if not stream.alive:
            return
        if isinstance(result, OmniError):
            self._fail(stream, result)
            return
        stream.done[job.index] = result
        while stream.alive and stream.emitted in stream.done:
            value = stream.done.pop(stream.emitted)
            stream.emitted += 1
            self._put(stream, value)
            stream.edge.settle()
        self._pump(stream)

    def _discard(self, stream: _BatchStream) -> None:
        """Items that nobody waits for any more leave the line."""
        stream.done.clear()
        if stream.taken > stream.emitted:
            self._waiting = [job for job in self._waiting if self._is_wanted(job)]
            if not self._waiting:
                self._stop_timer()

    def _is_wanted(self, job: _Job) -> bool:
        """Whether anyone waits for a job's result; a flight without passengers is called off."""
        if job.key is None:
            return job.stream.alive
        if any(passenger.stream.alive for passenger in self._flights[job.key]):
            return True
        del self._flights[job.key]
        return False

    # The way through the cache: key and look (in a thread) -> hit, or join the flight of the same key, or start one.

    def _look_up(self, jobs: list[_Job]) -> None:
        self._looking += len(jobs)
        self._workers.submit(partial(self._look, jobs), partial(self._looked_up, jobs))

    def _look(self, jobs: list[_Job]) -> list[tuple[bytes | None, Any]]:
        """In a worker thread: per item its key, and the hit or the error if there is one."""
        return [self._look_for(job) if job.stream.alive else (None, None) for job in jobs]

    def _look_for(self, job: _Job) -> tuple[bytes | None, Any]:
        assert self._cache is not None
        try:
            part = self._stage.key(job.item)
            if part is None:
                return None, None
            key = content_key(self._salt, part)
            return key, self._cache.get(key)
        except BaseException as error:  # noqa: BLE001 - handed to the request as a typed error
            return None, as_omni_error(self.name, error)

    def _looked_up(self, jobs: list[_Job], found: list[tuple[bytes | None, Any]]) -> None:
        assert self._cache is not None
        self._looking -= len(jobs)
        for job, (key, hit) in zip(jobs, found, strict=True):
            if not job.stream.alive:
                continue
            if hit is None and key is not None and key not in self._flights:
                # A flight may have landed since the look.
                hit = self._cache.get(key)
            if hit is not None:
                self._stats.cache_hits_total += not isinstance(hit, OmniError)
                self._settle(job, hit)
            elif key in self._flights:
                self._flights[key].append(job)
            else:
                self._depart(job, key)
        self._dispatch_soon()

    def _depart(self, job: _Job, key: bytes | None) -> None:
        job.key = key
        if key is not None:
            self._flights[key] = [job]
        self._join_line(job)

    def _keep(self, job: _Job, result: Any) -> Any:
        """In a worker thread: cache a result and give it frozen, for all who wait for it."""
        if job.key is None or type(result) is not self._output_type:
            return result
        assert self._cache is not None
        try:
            entry = Frozen.of(result)
            entry.thaw()
        except Exception as error:  # noqa: BLE001 - handed to the request as a typed error
            return as_omni_error(self.name, error)
        self._cache.put(job.key, entry)
        return entry

    def _land(self, key: bytes, result: Any) -> None:
        passengers = [job for job in self._flights.pop(key) if job.stream.alive]
        self._stats.cache_hits_total += 0 if isinstance(result, OmniError) else max(0, len(passengers) - 1)
        for job in passengers:
            self._settle(job, result.thaw() if isinstance(result, Frozen) else result)

    def stats(self) -> StageStats:
        stats = super().stats()
        return replace(
            stats,
            queued=stats.queued + len(self._waiting) + self._looking,
            cache_bytes=self._cache.bytes if self._cache is not None else 0,
        )
