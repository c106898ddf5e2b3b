"""A recipe that runs: its stages, its edges, and one request's way through them."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from omni.config import RecipeConfig
from omni.errors import BadRequest, Busy, DeadlineExceeded, OmniError, Unavailable
from omni.executors.base import StageLaunch
from omni.loading import CheckedStage, check, engine_for, fit_task
from omni.messages import Message
from omni.plugins import Plugins
from omni.recipe import Limits, Recipe
from omni.request_stream import Outcome, RequestStream
from omni.schedulers.base import Scheduler, StageStats
from omni.schedulers.worker import Mailbox, in_thread, log
from omni.stages import AR, Aggregator, StageContext
from omni.transports.base import Transport
from omni.transports.inproc import Edge, Join, Tee, Window
from omni.weights import LocalWeights, locate

EDGE_CAPACITY = 16
"""Items an edge holds unless a stage of its recipe takes more at once."""

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


@dataclass(frozen=True)
class _Node:
    """A stage as :meth:`Pipeline.submit` sees it; one without sources takes the request."""

    name: str
    scheduler: Scheduler
    sources: tuple[str, ...]
    consumers: tuple[str, ...]
    output_type: type[Message]
    joined: bool
    paced_by: str | None


@dataclass(frozen=True)
class _Active:
    stream: RequestStream
    since: float
    timer: asyncio.TimerHandle


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
        self.schedulers = dict(schedulers)
        self._transport = transport
        self._active: dict[str, _Active] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self._draining = False
        self._numbers = itertools.count(1)
        self._stats = PipelineStats()
        self._mean_seconds = 1.0
        # One size for all: where a path forks and joins again, a branch that waits for a large chunk must not be
        # starved by a full edge of the other branch.
        self._capacity = max(EDGE_CAPACITY, *(scheduler.input_capacity for scheduler in schedulers.values()))
        self._nodes = [
            _Node(
                name=stage.spec.name,
                scheduler=schedulers[stage.spec.name],
                sources=stage.spec.after or ("request",),
                consumers=tuple(other.spec.name for other in stages if stage.spec.name in other.spec.after),
                output_type=stage.cls.output_type,
                joined=len(stage.spec.after) > 1 and not issubclass(stage.cls, Aggregator),
                paced_by=stage.spec.paced_by,
            )
            for stage in reversed(stages)
        ]
        self.entry_options = next(stage.options for stage in stages if not stage.spec.after)
        self._entries = [stage.spec.name for stage in stages if not stage.spec.after]

    @classmethod
    async def load(cls, config: RecipeConfig, plugins: Plugins, progress: Progress | None = None) -> Pipeline:
        """Check the recipe, find its weights, bring its stages up, all at once.

        Raises:
            OmniError: typed, naming the stage; whatever was already up has been closed.
        """
        recipe = config.recipe
        report = progress or (lambda *_: None)
        stages = check(config)
        config.limits()
        report(recipe.name, "weights", "locating")
        weights = await in_thread(partial(_locate, config), "weights")
        report(recipe.name, "weights", "ready" if any(weights.values()) else "none needed")
        own = weights[None]
        config = await in_thread(partial(fit_task, config, own.path if own else None), "weights")
        executor = plugins.build(plugins.executors(), config.text("executor", "inprocess") or "", "executor")
        transport = plugins.build(plugins.transports(), config.text("transport", "inproc") or "", "transport")
        mailbox = Mailbox(asyncio.get_running_loop())
        notes: dict[str, str] = {}
        up: dict[str, Scheduler] = {}

        async def launch(stage: CheckedStage) -> None:
            name = stage.spec.name
            report(recipe.name, name, "loading")
            plan = _launch(config, stage, weights.get(name, own), plugins, notes)
            up[name] = await executor.launch(plan, mailbox)
            report(recipe.name, name, "ready")

        try:
            results = await asyncio.gather(*(launch(stage) for stage in stages), return_exceptions=True)
            for error in results:
                if error is not None:
                    raise error
        except BaseException:
            await _close_all(up.values())
            raise
        return cls(config, stages, up, transport, notes)

    def submit(self, request: Message, request_id: str | None = None) -> RequestStream:
        """Start a request; its stages begin before this returns.

        Raises:
            Busy: ``limits.max_requests`` are under way (429 with Retry-After).
            Unavailable: the pipeline is draining.
            BadRequest: a request of this id is under way.
        """
        self.check_room()
        request_id = request_id or f"{self.recipe.name}-{next(self._numbers)}"
        if request_id in self._active:
            raise BadRequest(f"a request with the id {request_id!r} is under way", code="duplicate_request_id")
        loop = asyncio.get_running_loop()
        result = Edge(self._capacity)
        stream = RequestStream(request_id, self.finished, result)
        timer = loop.call_later(self.limits.timeout_s, self._time_out, stream)
        self._active[request_id] = _Active(stream, loop.time(), timer)
        self._idle.clear()
        self._stats.requests_total += 1
        try:
            self._connect(request, request_id, result)
        except BaseException:
            stream.cancel()
            raise
        return stream

    def check_room(self) -> None:
        """Refuse what :meth:`submit` would refuse now, before work goes into making a request.

        Raises:
            Busy, Unavailable: as from :meth:`submit`.
        """
        if self._draining:
            raise Unavailable("the server is shutting down", retry_after=5.0)
        if len(self._active) >= self.limits.max_requests:
            self._stats.refused_total += 1
            raise Busy(
                f"{len(self._active)} requests are running or waiting, which is the limit of this server",
                retry_after=max(1.0, round(self._mean_seconds)),
            )

    def _connect(self, request: Message, request_id: str, result: Edge) -> None:
        """Give every stage its ends of the edges, consumers first, then put the request in."""
        connect = self._transport.connect
        inputs: dict[str, dict[str, Edge]] = {}
        entrances: dict[str, Edge] = {}  # what a stage takes its items from
        for node in self._nodes:
            sources: dict[str, Edge] = {source: Edge(self._capacity) for source in node.sources}
            inputs[node.name] = sources
            receivers = [inputs[consumer][node.name] for consumer in node.consumers] or [result]
            outlets = [connect(node.output_type, receiver) for receiver in receivers]
            outlet = outlets[0] if len(outlets) == 1 else Tee(outlets)
            if node.paced_by is not None:
                outlet = Window(outlet, entrances[node.paced_by], self._capacity)
            if node.joined:
                sources = {"joined": Join(sources, self._capacity)}
            entrances[node.name] = next(iter(sources.values()))
            node.scheduler.open(request_id, sources, outlet)
        for entry in self._entries:
            outlet = connect(type(request), inputs[entry]["request"])
            outlet.put(request)
            outlet.end(1)

    def _time_out(self, stream: RequestStream) -> None:
        stream.fail(DeadlineExceeded(f"the request took longer than {self.limits.timeout_s:g} s"))

    def finished(self, request_id: str, outcome: Outcome) -> None:
        """Called once by the stream of a request that has ended: every stage forgets it."""
        active = self._active.pop(request_id)
        active.timer.cancel()
        for scheduler in self.schedulers.values():
            scheduler.cancel(request_id)
        match outcome:
            case "completed":
                seconds = asyncio.get_running_loop().time() - active.since
                self._mean_seconds += 0.1 * (seconds - self._mean_seconds)
                self._stats.completed_total += 1
            case "failed":
                self._stats.failed_total += 1
            case "cancelled":
                self._stats.cancelled_total += 1
        if not self._active:
            self._idle.set()

    @property
    def down(self) -> str | None:
        """Why requests cannot be served any more, naming the stage; None while they can."""
        for name, scheduler in self.schedulers.items():
            if (why := scheduler.down) is not None:
                return f"stage {name!r} of {self.recipe.name!r}: {why}"
        return None

    @property
    def ready(self) -> bool:
        return not self._draining and self.down is None

    @property
    def active(self) -> int:
        return len(self._active)

    def stats(self) -> PipelineStats:
        stages = {name: scheduler.stats() for name, scheduler in self.schedulers.items()}
        return replace(self._stats, active=len(self._active), stages=stages)

    async def drain(self, timeout: float) -> int:
        """Take no more requests and wait for those under way; returns how many had to be cut off."""
        self._draining = True
        try:
            await asyncio.wait_for(self._idle.wait(), timeout)
        except TimeoutError:
            return self._end_all(Unavailable("the server is shutting down"))
        return 0

    async def close(self) -> None:
        """End what is under way and close every stage. Idempotent."""
        self._draining = True
        self._end_all(Unavailable("the server is shutting down"))
        schedulers, self.schedulers = self.schedulers, {}
        await _close_all(schedulers.values())

    def _end_all(self, error: OmniError) -> int:
        left = [active.stream for active in self._active.values()]
        for stream in left:
            stream.fail(error)
        return len(left)


async def _close_all(schedulers: Iterable[Scheduler]) -> None:
    """Close every one, whatever the others do; what goes wrong is logged, since nobody could act on it."""
    results = await asyncio.gather(*(scheduler.close() for scheduler in schedulers), return_exceptions=True)
    for error in results:
        if error is not None:
            log.error("a stage failed to close", exc_info=error)


def _locate(config: RecipeConfig) -> dict[str | None, LocalWeights | None]:
    """See :meth:`Recipe.all_weights`."""
    recipe = config.recipe
    setting = {stage: "weights" if stage is None else f"{stage}.weights" for stage in recipe.all_weights()}
    return {stage: locate(recipe, config.text(name), stage=stage) for stage, name in setting.items()}


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
