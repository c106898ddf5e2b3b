"""One recipe under test: its pipeline in the variants that checks ask for, and requests put through it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, NoReturn, TypeVar
from unittest.mock import patch

import msgspec

from omni import pipeline as pipelines
from omni.config import RecipeConfig, configure
from omni.errors import OmniError
from omni.loading import check as check_recipe
from omni.messages import encode
from omni.pipeline import Pipeline
from omni.plugins import Plugins
from omni.recipe import Recipe, Speech
from omni.request_stream import RequestStream
from omni.service import Service
from omni.stages import Encoder
from omni.testing.outcome import Outcome, Output, difference, joined, keep
from omni.testing.samples import Request, Samples, samples_of

T = TypeVar("T")
Pace = Callable[[Pipeline, int], Awaitable[None]]
"""Called after each item that a consumer took, with the number of items so far."""


class ConformanceFailure(AssertionError):
    """A promise that the recipe does not keep; the message says which and how to see it."""


class NotApplicable(Exception):
    """A check that says nothing about this recipe, and why."""


class Kit:
    """Loads ``recipe`` as asked, at most one pipeline at a time so that large models fit, and keeps outcomes that
    several checks need. Use it as a context manager."""

    def __init__(
        self,
        recipe: Recipe,
        plugins: Plugins | None = None,
        *,
        sets: Iterable[str] = (),
        weights: str | None = None,
        samples: Samples | None = None,
        timeout: float = 120.0,
    ) -> None:
        """``sets`` and ``weights`` as on the command line of ``omni launch``; ``timeout``: seconds that one request
        may take before it counts as one that never ends."""
        self.recipe = recipe
        self.plugins = plugins or Plugins.load()
        (self._config,) = configure([recipe], sets=sets, weights=[weights] if weights is not None else [])
        self.samples = samples if samples is not None else samples_of(recipe)
        self.timeout = timeout
        self._runner = asyncio.Runner()
        self._pipeline: Pipeline | None = None
        self._variant = ""
        self._known: dict[tuple[str, bytes], Outcome] = {}
        self._seconds = 0.0

    def __enter__(self) -> Kit:
        self._runner.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._runner.run(self.close())
        finally:
            self._runner.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the kit's loop."""
        return self._runner.run(work)

    @property
    def tolerance(self) -> float:
        """Largest difference of a sample between two runs of one request."""
        if self.samples.tolerance is not None:
            return self.samples.tolerance
        task = self.recipe.task
        return task.stream_tolerance if isinstance(task, Speech) else 0.0

    @property
    def requests(self) -> tuple[Request, ...]:
        """The samples, each with a seed of its own where the recipe takes one."""
        if not self.recipe.task.seed:
            return self.samples.requests
        return tuple(
            msgspec.structs.replace(request, seed=101 + i) if request.seed is None else request
            for i, request in enumerate(self.samples.requests)
        )

    def config(self, sets: Mapping[str, Any] | None = None, task: Mapping[str, Any] | None = None) -> RecipeConfig:
        """The recipe with ``sets`` (by dotted path) and fields of its ``task`` changed."""
        recipe = self.recipe
        if task:
            recipe = recipe.model_copy(update={"task": recipe.task.model_copy(update=dict(task))})
        config = RecipeConfig(recipe, dict(self._config.settings))
        # The kit sends many requests at once; the limit on them is one check's matter.
        enough = max(config.limits().max_requests, 64)
        for path, value in {"limits.max_requests": enough, **(sets or {})}.items():
            config.set(path, value, "conformance")
        return config

    async def pipeline(
        self,
        sets: Mapping[str, Any] | None = None,
        task: Mapping[str, Any] | None = None,
        *,
        anew: bool = False,
        edges: int | None = None,
    ) -> Pipeline:
        """The recipe loaded in a variant; what was loaded otherwise is closed first. ``anew`` loads again in any
        case; ``edges``: how many items edges hold, where their consumers need no more."""
        variant = repr((sorted((sets or {}).items()), sorted((task or {}).items()), edges))
        if self._pipeline is None or variant != self._variant or anew:
            await self.close()
            with patch.object(pipelines, "EDGE_CAPACITY", edges or pipelines.EDGE_CAPACITY):
                self._pipeline = await Pipeline.load(self.config(sets, task), self.plugins)
            self._variant = variant
        return self._pipeline

    async def service(self, task: Mapping[str, Any] | None = None, sets: Mapping[str, Any] | None = None) -> Service:
        """The pipeline of a variant as a server sees it."""
        return Service([await self.pipeline(sets, task)], self.plugins)

    async def close(self) -> None:
        if self._pipeline is not None:
            pipeline, self._pipeline = self._pipeline, None
            await pipeline.close()

    async def collect(self, pipeline: Pipeline, stream: RequestStream, pace: Pace | None = None) -> Outcome:
        """Read a request to its end."""
        items: list[Any] = []
        try:
            async with asyncio.timeout(self.timeout), stream:
                async for item in stream:
                    items.append(keep(item))
                    if pace is not None:
                        await pace(pipeline, len(items))
        except OmniError as error:
            return error
        except TimeoutError:
            fail(f"a request did not end within {self.timeout:g} s; stages: {busy(pipeline) or 'idle'}")
        return joined(items)

    async def outcome(self, request: Request, pipeline: Pipeline, pace: Pace | None = None) -> Outcome:
        """Run one request now."""
        return await self.collect(pipeline, pipeline.submit(request), pace)

    async def outcomes(self, requests: Sequence[Request], pipeline: Pipeline) -> list[Outcome]:
        """Run requests at the same time."""
        streams = [pipeline.submit(request) for request in requests]
        return list(await asyncio.gather(*(self.collect(pipeline, stream) for stream in streams)))

    def uncached(self) -> dict[str, Any]:
        """Settings that switch every cache of encoder stages off: a cache hides what does not repeat."""
        stages = check_recipe(self._config)
        return {f"{stage.spec.name}.cache_mb": 0 for stage in stages if issubclass(stage.cls, Encoder)}

    async def solo(
        self,
        request: Request,
        sets: Mapping[str, Any] | None = None,
        task: Mapping[str, Any] | None = None,
    ) -> Outcome:
        """What a request gives when it runs alone, in a variant; remembered."""
        header, buffers = encode(request)
        key = (repr((sorted((sets or {}).items()), sorted((task or {}).items()))), b"\0".join([header, *buffers]))
        if key not in self._known:
            self._known[key] = await self.outcome(request, await self.pipeline(sets, task))
        return self._known[key]

    async def output(self, request: Request) -> Output:
        """What a request gives alone; an error or an empty output is a failure."""
        return spoken(request, await self.solo(request))

    async def outputs(self) -> list[Output]:
        """What the samples give alone: at least two, all different, none empty."""
        requests = self.requests
        if len(requests) < 2:
            fail("the samples hold fewer than two requests: most checks compare two")
        await self.pipeline()
        started = time.perf_counter()
        outputs = [await self.output(request) for request in requests]
        # Remembered outputs take no time: the first call is the one that counts.
        self._seconds = max(self._seconds, (time.perf_counter() - started) / len(requests))
        for i, one in enumerate(outputs):
            for j in range(i):
                if self.difference(one, outputs[j]) is None:
                    fail(f"samples {j} and {i} give the same output: comparisons with them would prove nothing")
        return outputs

    def rounds(self, most: int, requests: int, least: int = 1) -> int:
        """How often a check repeats what takes ``requests`` requests: ``most`` times where the recipe is fast, less
        often where that would take more than about ten seconds. After :meth:`outputs`."""
        return max(least, min(most, int(10.0 / max(self._seconds * requests, 1e-6))))

    def difference(self, one: Outcome, other: Outcome) -> str | None:
        """What differs between two runs of one request, in words."""
        return difference(one, other, self.tolerance, self.samples.time_tolerance)

    async def idle(self, pipeline: Pipeline, within: float) -> dict[str, str]:
        """Wait until no stage holds anything; what still does after ``within`` seconds."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + within
        while left := busy(pipeline):
            if loop.time() > deadline:
                return left
            await asyncio.sleep(0.002)
        return {}


def fail(message: str) -> NoReturn:
    raise ConformanceFailure(message)


def spoken(request: Request, outcome: Outcome) -> Output:
    """The output, or a failure when there is none."""
    if isinstance(outcome, OmniError):
        fail(f"a legal request failed: {type(outcome).__name__}: {outcome.message} ({shown(request)})")
    if outcome.is_empty():
        fail(f"a legal request gave an empty output: comparisons with it would prove nothing ({shown(request)})")
    return outcome


def busy(pipeline: Pipeline) -> dict[str, str]:
    """What is not at rest: stages with open streams, waiting or running items, and requests."""
    stats = pipeline.stats()
    left = {
        name: f"{s.streams} streams, {s.queued} queued, {s.running} running"
        for name, s in stats.stages.items()
        if s.streams or s.queued or s.running
    }
    if stats.active:
        left["pipeline"] = f"{stats.active} requests"
    return left


def shown(request: Request) -> str:
    """A request in one line, for messages."""
    fields = {name: getattr(request, name) for name in request.__struct_fields__ if name not in ("audio", "references")}
    return ", ".join(f"{name}={_cut(value)}" for name, value in fields.items() if value not in (None, "", [], {}, 1.0))


def _cut(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:60]}… ({len(text)} characters)"
