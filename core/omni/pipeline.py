"""A recipe that runs: its stages, its edges, and one request's way through them."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from omni.config import RecipeConfig
from omni.errors import Busy, Cancelled, DeadlineExceeded, OmniError, Unavailable
from omni.executors.base import StageLaunch
from omni.loading import CheckedStage, check, engine_for
from omni.messages import Message
from omni.plugins import Plugins
from omni.recipe import Limits, Recipe
from omni.schedulers.base import Scheduler, StageStats
from omni.schedulers.worker import Mailbox
from omni.stages import AR, Aggregator, StageContext
from omni.transports.base import Outlet, Transport
from omni.transports.inproc import Edge, Tee, join
from omni.weights import LocalWeights, locate

EDGE_CAPACITY = 16
"""Items an edge holds unless its consumer needs more at once."""

Progress = Callable[[str, str, str], None]
"""Called with (recipe, stage or ``weights``, what happens now)."""


@dataclass
class PipelineStats:
    """A snapshot; the totals count since start, by how the request ended."""

    active: int = 0
    requests_total: int = 0
    completed_total: int = 0
    failed_total: int = 0
    cancelled_total: int = 0
    refused_total: int = 0
    stages: dict[str, StageStats] = field(default_factory=dict)


class RequestStream:
    """The results of one request, as they are made. Iterate it to its end, or leave the ``async with``: whatever
    still runs is cancelled then."""

    def __init__(self, request_id: str, pipeline: Pipeline, edge: Edge) -> None:
        self.request_id = request_id
        self._pipeline = pipeline
        self._edge = edge
        self._waiter: asyncio.Future[None] | None = None
        self._closed = False
        edge.on_item = self._wake

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def __aiter__(self) -> RequestStream:
        return self

    async def __anext__(self) -> Any:
        edge = self._edge
        while True:
            if edge.items:
                return edge.take()
            if edge.error is not None:
                self._close("failed")
                raise edge.error
            if edge.ended:
                self._close("completed")
                raise StopAsyncIteration
            if self._closed:
                raise Cancelled("the request was cancelled")
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None

    def poll(self) -> Any:
        """An item that is already here, or None; never waits."""
        return self._edge.take() if self._edge.items else None

    def fail(self, error: OmniError) -> None:
        """End the stream with an error and stop every stage's work on it."""
        if not self._closed and not self._edge.ended:
            self._pipeline.release(self.request_id)
            self._edge.fail(error)

    def cancel(self) -> None:
        """Stop every stage's work on this request. Idempotent; a finished request is left alone."""
        if not self._closed:
            self._close("cancelled")
            self._wake()

    def _close(self, outcome: str) -> None:
        if self._closed:
            return
        self._closed = True
        self._edge.close()
        self._pipeline.finished(self.request_id, outcome)

    async def __aenter__(self) -> RequestStream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()


class Pipeline:
    """A loaded recipe. Made by :meth:`load`; used on the event loop's thread only."""

    def __init__(
        self,
        config: RecipeConfig,
        stages: list[CheckedStage],
        schedulers: Mapping[str, Scheduler],
        transport: Transport,
        notes: Mapping[str, str],
    ) -> None:
        self.config = config
        self.recipe: Recipe = config.recipe
        self.limits: Limits = config.limits()
        self.notes = dict(notes)
        self._stages = stages
        self._schedulers = schedulers
        self._transport = transport
        self._active: dict[str, tuple[RequestStream, asyncio.TimerHandle]] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self._draining = False
        self._stats = PipelineStats()
        self._mean_seconds = 1.0
        self._consumers: dict[str, list[CheckedStage]] = {stage.spec.name: [] for stage in stages}
        for stage in stages:
            for source in stage.spec.after:
                self._consumers[source].append(stage)

    @classmethod
    async def load(cls, config: RecipeConfig, plugins: Plugins, progress: Progress | None = None) -> Pipeline:
        """Check the recipe, find its weights, bring its stages up, all at once.

        Raises:
            OmniError: typed, naming the stage; whatever was already up has been closed.
        """
        recipe = config.recipe
        report = progress or (lambda *_: None)
        stages = check(config)
        report(recipe.name, "weights", "locating")
        weights = await asyncio.to_thread(locate, recipe, config.text("weights"))
        report(recipe.name, "weights", "ready" if weights else "none needed")
        executor = plugins.build(plugins.executors(), config.text("executor", "inprocess") or "", "executor")
        transport = plugins.build(plugins.transports(), config.text("transport", "inproc") or "", "transport")
        mailbox = Mailbox(asyncio.get_running_loop())
        notes: dict[str, str] = {}

        async def launch(stage: CheckedStage) -> Scheduler:
            name = stage.spec.name
            report(recipe.name, name, "loading")
            scheduler: Scheduler = await executor.launch(_launch(config, stage, weights, plugins, notes), mailbox)
            report(recipe.name, name, "ready")
            return scheduler

        results = await asyncio.gather(*(launch(stage) for stage in stages), return_exceptions=True)
        errors = [result for result in results if isinstance(result, BaseException)]
        if errors:
            await asyncio.gather(*(r.close() for r in results if not isinstance(r, BaseException)))
            raise errors[0]
        schedulers = {
            stage.spec.name: result
            for stage, result in zip(stages, results, strict=True)
            if not isinstance(result, BaseException)
        }
        return cls(config, stages, schedulers, transport, notes)

    def submit(self, request: Message, request_id: str | None = None) -> RequestStream:
        """Start a request; its stages begin before this returns.

        Raises:
            Busy: ``limits.max_requests`` are under way (429 with Retry-After).
            Unavailable: the pipeline is draining.
        """
        if self._draining:
            raise Unavailable("the server is shutting down", retry_after=5.0)
        if len(self._active) >= self.limits.max_requests:
            self._stats.refused_total += 1
            raise Busy(
                f"{len(self._active)} requests are running or waiting, which is the limit of this server",
                retry_after=max(1.0, round(self._mean_seconds)),
            )
        request_id = request_id or uuid.uuid4().hex
        loop = asyncio.get_running_loop()
        inputs: dict[str, dict[str, Edge]] = {}
        result = Edge(EDGE_CAPACITY)
        stream = RequestStream(request_id, self, result)
        timer = loop.call_later(self.limits.timeout_s, self._time_out, stream)
        self._active[request_id] = (stream, timer)
        self._idle.clear()
        self._stats.requests_total += 1
        entries: list[Edge] = []
        for stage in reversed(self._stages):
            name = stage.spec.name
            scheduler = self._schedulers[name]
            capacity = max(EDGE_CAPACITY, scheduler.input_capacity)
            sources = {source: Edge(capacity) for source in stage.spec.after or ("request",)}
            inputs[name] = sources
            if not stage.spec.after:
                entries.append(sources["request"])
            if len(sources) > 1 and not issubclass(stage.cls, Aggregator):
                sources = {"joined": join(sources, capacity)}
            scheduler.open(request_id, sources, self._outlet(stage, inputs, result))
        for entry in entries:
            outlet = self._transport.connect(type(request), entry)
            outlet.put(request)
            outlet.end()
        return stream

    def _outlet(self, stage: CheckedStage, inputs: dict[str, dict[str, Edge]], result: Edge) -> Outlet:
        name = stage.spec.name
        receivers = [inputs[consumer.spec.name][name] for consumer in self._consumers[name]] or [result]
        outlets = [self._transport.connect(stage.cls.output_type, receiver) for receiver in receivers]
        return outlets[0] if len(outlets) == 1 else Tee(outlets)

    def _time_out(self, stream: RequestStream) -> None:
        stream.fail(DeadlineExceeded(f"the request took longer than {self.limits.timeout_s:g} s"))

    def release(self, request_id: str) -> None:
        """Make every stage forget a request."""
        for scheduler in self._schedulers.values():
            scheduler.cancel(request_id)

    def finished(self, request_id: str, outcome: str) -> None:
        """Called once by the stream of a request that has ended."""
        _, timer = self._active.pop(request_id)
        if outcome == "completed":
            loop = asyncio.get_running_loop()
            seconds = self.limits.timeout_s - (timer.when() - loop.time())
            self._mean_seconds += 0.1 * (seconds - self._mean_seconds)
            self._stats.completed_total += 1
        else:
            self.release(request_id)
            if outcome == "failed":
                self._stats.failed_total += 1
            else:
                self._stats.cancelled_total += 1
        timer.cancel()
        if not self._active:
            self._idle.set()

    @property
    def ready(self) -> bool:
        return not self._draining

    @property
    def active(self) -> int:
        return len(self._active)

    def stats(self) -> PipelineStats:
        self._stats.active = len(self._active)
        self._stats.stages = {name: scheduler.stats() for name, scheduler in self._schedulers.items()}
        return self._stats

    async def drain(self, timeout: float) -> int:
        """Take no more requests and wait for those under way; returns how many had to be cancelled."""
        self._draining = True
        try:
            await asyncio.wait_for(self._idle.wait(), timeout)
        except TimeoutError:
            left = [stream for stream, _ in self._active.values()]
            for stream in left:
                stream.fail(Unavailable("the server is shutting down"))
            return len(left)
        return 0

    async def close(self) -> None:
        self._draining = True
        for stream, _ in list(self._active.values()):
            stream.cancel()
        await asyncio.gather(*(scheduler.close() for scheduler in self._schedulers.values()))


def _launch(
    config: RecipeConfig,
    stage: CheckedStage,
    weights: LocalWeights | None,
    plugins: Plugins,
    notes: dict[str, str],
) -> StageLaunch:
    context = StageContext(
        recipe=config.recipe,
        stage=stage.spec.name,
        weights=weights.path if weights else None,
        revision=weights.revision if weights else "",
    )
    if not issubclass(stage.cls, AR):
        return StageLaunch(stage.cls, stage.options, context)
    name, factory, reason = engine_for(plugins, stage)
    notes[stage.spec.name] = f"engine {name} ({reason})"
    options: Any = stage.options
    return StageLaunch(stage.cls, stage.options, context, factory, options.engine_options().get(name, {}))
