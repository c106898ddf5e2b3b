"""Continuous: hands prompts to an AR engine and its steps to the next stage, with back-pressure per request."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from omni.engines.base import Engine, EngineStats, Handle, StepOutput
from omni.errors import OmniError
from omni.schedulers.base import StageStats, Stream, ThreadedScheduler
from omni.schedulers.worker import Mailbox, as_omni_error
from omni.stages import AR, AROptions
from omni.transports.base import Outlet
from omni.transports.inproc import Edge

_WINDOW = 32
"""Steps that may be on their way between the engine and a stage output before the request pauses."""


def _nothing() -> None:
    pass


class _Generation:
    """One item's generation; at once the engine's sink and the loop's queue of its steps.

    ``_pushed`` is written by the engine's thread only, ``_consumed`` by the loop's only, so both may read both.
    """

    def __init__(self, scheduler: ContinuousScheduler, stream: _ARStream, item: Any) -> None:
        self._scheduler = scheduler
        self.stream = stream
        self.item = item
        self.steps: deque[StepOutput] = deque()
        self.finished = False
        self.handle: Handle | None = None
        self._pushed = 0
        self._consumed = 0
        self._wake: Callable[[], None] = _nothing

    def room(self) -> int:
        return _WINDOW - (self._pushed - self._consumed)

    def push(self, output: StepOutput) -> None:
        self._pushed += 1
        self._scheduler.mail.post(self._scheduler.on_step, self, output)

    def finish(self) -> None:
        self._scheduler.mail.post(self._scheduler.on_finish, self)

    def fail(self, error: OmniError) -> None:
        self._scheduler.mail.post(self._scheduler.on_error, self, error)

    def on_room(self, wake: Callable[[], None]) -> None:
        self._wake = wake

    def consumed(self) -> None:
        """On the loop: one step has left."""
        was_full = self.room() <= 0
        self._consumed += 1
        if was_full:
            self._wake()


class _ARStream(Stream):
    """Generations of a request leave in the order of their items."""

    __slots__ = ("generations", "next_index")

    def __init__(self, request_id: str, edge: Edge, outlet: Outlet) -> None:
        super().__init__(request_id, edge, outlet)
        self.generations: deque[_Generation] = deque()
        self.next_index = 0


class ContinuousScheduler(ThreadedScheduler):
    """Runs an :class:`AR` stage on an engine. ``parallel_items`` of one request are generated at once."""

    _stage: AR[Any, Any]

    def __init__(self, stage: AR[Any, Any], engine: Engine, mailbox: Mailbox) -> None:
        assert isinstance(stage.options, AROptions)
        super().__init__(stage, mailbox, stage.options.prompt_workers)
        self._parallel = stage.options.parallel_items
        self._engine = engine
        self.mail = mailbox

    def open(self, request_id: str, sources: Mapping[str, Edge], outlet: Outlet) -> None:
        (edge,) = sources.values()
        stream = _ARStream(request_id, edge, outlet)
        self._streams[request_id] = stream

        def pump() -> None:
            self._pump(stream)

        edge.on_item = pump
        outlet.on_room(pump)
        pump()

    def _pump(self, stream: _ARStream) -> None:
        # ``busy`` keeps a consumer that is woken by a put from coming back in between two outputs of one step.
        if not stream.alive or stream.busy:
            return
        if stream.edge.error is not None:
            self._fail(stream, stream.edge.error)
            return
        stream.busy = True
        try:
            self._emit(stream)
        except Exception as error:  # noqa: BLE001 - handed to the request as a typed error
            self._fail(stream, error)
        finally:
            stream.busy = False
        while stream.alive and stream.edge.items and len(stream.generations) < self._parallel:
            self._begin(stream)
        if stream.alive and stream.edge.drained and not stream.generations:
            self._finish(stream)

    def _emit(self, stream: _ARStream) -> None:
        while stream.generations and stream.alive:
            head = stream.generations[0]
            while head.steps and stream.outlet.room and stream.alive:
                step = head.steps.popleft()
                self._stats.items_total += 1
                for output in self._stage.output(head.item, step):
                    stream.outlet.put(output)
                head.consumed()
            if head.steps or not head.finished:
                return
            stream.generations.popleft()

    def _begin(self, stream: _ARStream) -> None:
        name = f"{stream.request_id}#{stream.next_index}"
        stream.next_index += 1
        generation = _Generation(self, stream, None)
        stream.generations.append(generation)
        generation.item = item = stream.edge.take()

        def job() -> None:
            if not stream.alive:
                return
            try:
                prompt, params = self._stage.prompt(item)
                handle = self._engine.submit(name, prompt, params, generation)
            except Exception as error:  # noqa: BLE001 - handed to the request as a typed error
                generation.fail(as_omni_error(self.name, error))
                return
            self.mail.post(self._submitted, generation, handle)

        self._workers.submit(job)

    def _submitted(self, generation: _Generation, handle: Handle) -> None:
        if generation.stream.alive:
            generation.handle = handle
        else:
            self._engine.abort(handle)

    def on_step(self, generation: _Generation, output: StepOutput) -> None:
        if generation.stream.alive:
            generation.steps.append(output)
            self._pump(generation.stream)

    def on_finish(self, generation: _Generation) -> None:
        generation.finished = True
        generation.handle = None
        self._pump(generation.stream)

    def on_error(self, generation: _Generation, error: OmniError) -> None:
        generation.handle = None
        self._fail(generation.stream, error)

    def _discard(self, stream: _ARStream) -> None:
        for generation in stream.generations:
            if generation.handle is not None:
                self._engine.abort(generation.handle)
        stream.generations.clear()

    def stats(self) -> StageStats:
        stats = super().stats()
        engine = self._engine.stats()
        stats.running = engine.running
        stats.queued += engine.waiting + engine.paused
        stats.steps_total = engine.steps_total
        return stats

    def engine_stats(self) -> EngineStats:
        return self._engine.stats()

    async def close(self) -> None:
        import asyncio

        for request_id in list(self._streams):
            self.cancel(request_id)
        await asyncio.to_thread(self._engine.close)
        await super().close()
