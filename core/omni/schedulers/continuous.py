"""Continuous: hands prompts to an AR engine and its steps to the next stage, with back-pressure per request."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from omni.engines.base import Engine, EngineStats, Handle, StepOutput
from omni.errors import OmniError
from omni.schedulers.base import StageStats, Stream, ThreadedScheduler
from omni.schedulers.worker import Mailbox
from omni.stages import AR, AROptions
from omni.transports.base import Outlet
from omni.transports.inproc import Edge


def _nothing() -> None:
    pass


class _Generation:
    """One generation for an item; at once the engine's sink and the loop's queue of its steps. ``state`` is None until
    the stage has opened the item.

    ``_pushed`` is written by the engine's thread only, ``_consumed`` by the loop's only, so both may read both.
    """

    def __init__(self, scheduler: ContinuousScheduler, stream: _ARStream, item: Any, state: Any = None) -> None:
        self._scheduler = scheduler
        self.stream = stream
        self.item = item
        self.state = state
        self.steps: deque[StepOutput] = deque()
        self.finished = False
        self.handle: Handle | None = None
        self._pushed = 0
        self._consumed = 0
        self._wake: Callable[[], None] = _nothing

    def room(self) -> int:
        return self._scheduler.ahead - (self._pushed - self._consumed)

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
        # Count first, look second: an engine that saw no room before the count has pushed before the look.
        self._consumed += 1
        if self.room() <= 1:
            self._wake()


class _ARStream(Stream):
    """Generations of a request leave in the order of their items."""

    __slots__ = ("generations", "next_index")

    def __init__(self, request_id: str, sources: Mapping[str, Edge], outlet: Outlet) -> None:
        super().__init__(request_id, sources, outlet)
        self.generations: deque[_Generation] = deque()
        self.next_index = 0


class ContinuousScheduler(ThreadedScheduler):
    """Runs an :class:`AR` stage on an engine. ``parallel_items`` of one request are generated at once."""

    stream_type = _ARStream
    _stage: AR[Any, Any]

    def __init__(self, stage: AR[Any, Any], engine: Engine, mailbox: Mailbox) -> None:
        assert isinstance(stage.options, AROptions)
        super().__init__(stage, mailbox, stage.options.prompt_workers)
        self._parallel = stage.options.parallel_items
        # As many may be under way to the stage as are inside.
        self.input_capacity = 2 * self._parallel
        self.ahead = stage.options.ahead
        self._engine = engine
        self.mail = mailbox

    def _pump(self, stream: _ARStream) -> None:
        if not stream.alive:
            return
        if stream.edge.error is not None:
            self._fail(stream, stream.edge.error)
            return
        try:
            self._emit(stream)
        except Exception as error:  # noqa: BLE001 - handed to the request as a typed error
            self._fail(stream, error)
        while stream.alive and stream.edge.items and len(stream.generations) < self._parallel:
            generation = _Generation(self, stream, stream.edge.take())
            stream.generations.append(generation)
            self._begin(generation)
        if stream.alive and stream.edge.drained and not stream.generations:
            self._finish(stream)

    def _emit(self, stream: _ARStream) -> None:
        while stream.generations:
            head = stream.generations[0]
            while head.steps and stream.outlet.room:
                step = head.steps.popleft()
                head.consumed()
                self._stats.items_total += 1
                for output in self._stage.output(head.state, step):
                    self._put(stream, output)
                    if not stream.alive:
                        return
            if head.steps or not head.finished:
                return
            if self._stage.follows(head.state):
                stream.generations[0] = following = _Generation(self, stream, head.item, head.state)
                self._begin(following)
                return
            stream.generations.popleft()
            stream.edge.settle()

    def _begin(self, generation: _Generation) -> None:
        stream = generation.stream
        name = f"{stream.request_id}#{stream.next_index}"
        stream.next_index += 1
        self._workers.submit(partial(self._submit, name, generation), partial(self._submitted, generation))

    def _submit(self, name: str, generation: _Generation) -> Handle | None:
        """In a worker thread."""
        if not generation.stream.alive:
            return None
        if generation.state is None:
            generation.state = self._stage.open(generation.item)
        prompt, params = self._stage.prompt(generation.state)
        return self._engine.submit(name, prompt, params, generation)

    def _submitted(self, generation: _Generation, result: Handle | OmniError | None) -> None:
        if isinstance(result, OmniError):
            self._fail(generation.stream, result)
        elif result is None or generation.finished:
            return
        elif generation.stream.alive:
            generation.handle = result
        else:
            self._engine.abort(result)

    def on_step(self, generation: _Generation, output: StepOutput) -> None:
        if generation.stream.alive:
            generation.steps.append(output)
            self._pump(generation.stream)

    def on_finish(self, generation: _Generation) -> None:
        self._end(generation)
        self._pump(generation.stream)

    def on_error(self, generation: _Generation, error: OmniError) -> None:
        self._end(generation)
        self._fail(generation.stream, error)

    def _end(self, generation: _Generation) -> None:
        generation.finished = True
        generation.handle = None

    def _discard(self, stream: _ARStream) -> None:
        for generation in stream.generations:
            if generation.handle is not None:
                self._engine.abort(generation.handle)
        stream.generations.clear()

    def stats(self) -> StageStats:
        stats = super().stats()
        engine = self._engine.stats()
        return replace(
            stats,
            running=self._workers.pending + engine.running,
            queued=stats.queued + engine.waiting + engine.paused,
            steps_total=engine.steps_total,
        )

    @property
    def down(self) -> str | None:
        return self._engine.down

    def engine_stats(self) -> EngineStats:
        return self._engine.stats()

    def _shut(self) -> None:
        self._engine.close()
        super()._shut()
