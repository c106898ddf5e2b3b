"""Streamed equals whole, concurrent equals solo, messages cross processes."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from omni.loading import check as check_recipe
from omni.pipeline import Pipeline
from omni.recipe import Speech
from omni.request_stream import RequestStream
from omni.stages import Decoder
from omni.testing.checks.base import check, turns
from omni.testing.clips import long_request
from omni.testing.kit import Kit, NotApplicable, fail, shown
from omni.testing.outcome import difference

WHOLE = 4096
"""Items a decoder takes at once when it is to take all."""

CHUNKS: tuple[dict[str, Any], ...] = (
    {"first_chunk": WHOLE, "max_chunk": WHOLE, "chunk_growth": 1.0},
    {"first_chunk": 1, "max_chunk": 1, "chunk_growth": 1.0},
    {"first_chunk": 4, "max_chunk": 4, "chunk_growth": 1.0},
    {"first_chunk": 1, "max_chunk": 8, "chunk_growth": 2.0},
)


@check("however a decoder's input is cut into chunks, the samples are the same", task="speech")
async def streamed_equals_whole(kit: Kit) -> None:
    assert isinstance(kit.recipe.task, Speech)
    decoders = [stage.spec.name for stage in check_recipe(kit.config()) if issubclass(stage.cls, Decoder)]
    if not decoders:
        raise NotApplicable("the recipe has no decoder, so nothing cuts its output into chunks")
    await kit.outputs()
    requests = [*kit.requests[:2], long_request(kit.requests, kit.samples.long_seconds)]
    alone = [await kit.output(request) for request in requests]
    tolerance = max(kit.tolerance, kit.recipe.task.stream_tolerance)
    for chunks in CHUNKS:
        sets = {f"{name}.{option}": value for name in decoders for option, value in chunks.items()}
        pipeline = await kit.pipeline(sets)
        for i, outcome in enumerate(await kit.outcomes(requests, pipeline)):
            if (what := difference(outcome, alone[i], tolerance, kit.samples.time_tolerance)) is not None:
                fail(f"with {', '.join(f'{k}={v}' for k, v in sets.items())}, {shown(requests[i])} gave {what}")


@check("a slow reader gets the same as a fast one, also where every edge is full after one item")
async def slow_readers_get_the_same(kit: Kit) -> None:
    await kit.outputs()
    requests = [*kit.requests[:2], long_request(kit.requests, kit.samples.long_seconds)]
    alone = [await kit.output(request) for request in requests]
    pipeline = await kit.pipeline(edges=1)

    async def until_stuck(pipeline: Pipeline, taken: int) -> None:
        """Take the next item only when every stage has run into back-pressure or come to its end."""
        while any(stage.running for stage in pipeline.stats().stages.values()):  # noqa: ASYNC110 - stats are polled
            await asyncio.sleep(0.001)
        await turns(3)

    streams = [pipeline.submit(request) for request in requests]
    await until_stuck(pipeline, 0)
    outcomes = [await kit.collect(pipeline, stream, until_stuck) for stream in streams]
    for i, outcome in enumerate(outcomes):
        if (what := kit.difference(outcome, alone[i])) is not None:
            fail(f"read slowly, {shown(requests[i])} gave {what}: is an array reused after it was handed out?")


@check("requests that run at the same time, some of them cancelled, give what each gives alone")
async def concurrent_equals_solo(kit: Kit) -> None:
    alone = await kit.outputs()
    draw = random.Random(0)
    variants: list[dict[str, Any]] = [kit.uncached()] * kit.rounds(2, 4 * len(alone))
    for sets in (*variants, {}):
        pipeline = await kit.pipeline(sets)
        order = [i for i in range(len(alone)) for _ in range(2)]
        draw.shuffle(order)
        streams = [pipeline.submit(kit.requests[i]) for i in order]
        gone = set(draw.sample(range(len(order)), len(order) // 3))
        outcomes = await asyncio.gather(
            *(_leave(stream) if at in gone else kit.collect(pipeline, stream) for at, stream in enumerate(streams))
        )
        for at, outcome in enumerate(outcomes):
            if outcome is not None and (what := kit.difference(outcome, alone[order[at]])) is not None:
                fail(f"beside {len(order) - 1} other requests, {len(gone)} cancelled, sample {order[at]} gave {what}")
        if left := await kit.idle(pipeline, kit.samples.cancel_seconds):
            fail(f"all requests have ended and there is still work: {left}")


async def _leave(stream: RequestStream) -> None:
    """Take one item and go."""
    async with stream:
        async for _ in stream:
            return


@check("every message on every edge can cross a process boundary, and nothing depends on its being shared")
async def messages_cross_processes(kit: Kit) -> None:
    alone = await kit.outputs()
    pipeline = await kit.pipeline({"transport": "codec"})
    for i, outcome in enumerate(await kit.outcomes(kit.requests, pipeline)):
        if (what := kit.difference(outcome, alone[i])) is not None:
            fail(f"with every message encoded and decoded on its way, sample {i} gave {what}")
    if left := await kit.idle(pipeline, kit.samples.cancel_seconds):
        fail(f"with every message encoded and decoded on its way, work is left behind: {left}")


STREAMING = (
    streamed_equals_whole,
    slow_readers_get_the_same,
    concurrent_equals_solo,
    messages_cross_processes,
)
