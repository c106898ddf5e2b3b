"""Cancel is one call; slots, pages and bytes come back."""

from __future__ import annotations

import asyncio
import random
import time
import tracemalloc

from omni.engines.base import EngineStats
from omni.errors import Cancelled, DeadlineExceeded
from omni.pipeline import Pipeline
from omni.request_stream import RequestStream
from omni.testing import memory
from omni.testing.checks.base import check
from omni.testing.kit import Kit, fail

CYCLES = 8
PYTHON_BYTES, PYTHON_BYTES_PER_REQUEST = 32_768, 512
"""What may stay behind in Python's own memory before it counts as a leak. Two readings of the same state differ by some
10 kB: Python keeps freed lists and frames for the next use, and caches of bounded size fill."""


def engines(pipeline: Pipeline) -> dict[str, EngineStats]:
    """Statistics of the AR engines, by stage."""
    found = {name: getattr(scheduler, "engine_stats", None) for name, scheduler in pipeline.schedulers.items()}
    return {name: read() for name, read in found.items() if read is not None}


async def cycle(kit: Kit, pipeline: Pipeline, draw: random.Random, seconds: float) -> int:
    """Start some samples twice, cancel two thirds of them at random moments; how many were started.

    ``seconds`` is about the time that they all take.
    """
    streams = [pipeline.submit(request) for request in kit.requests[:4] for _ in range(2)]
    await asyncio.gather(*(_live(kit, pipeline, stream, draw.random(), draw.random() * seconds) for stream in streams))
    return len(streams)


async def _live(kit: Kit, pipeline: Pipeline, stream: RequestStream, kind: float, after: float) -> None:
    if kind < 0.2:
        stream.cancel()  # while it is queued
    elif kind < 0.4:
        async with stream:
            async for _ in stream:
                return  # after its first item
    elif kind < 0.7:
        cancel = asyncio.get_running_loop().call_later(after, stream.cancel)
        outcome = await kit.collect(pipeline, stream)  # somewhere in between
        cancel.cancel()
        if isinstance(outcome, Exception) and not isinstance(outcome, Cancelled):
            fail(f"a cancelled request ended in {type(outcome).__name__}: {outcome}")
    else:
        await kit.collect(pipeline, stream)


@check(
    "a cancelled or timed-out request leaves every stage and every engine slot within the time that the samples state"
)
async def cancel_frees_slots(kit: Kit) -> None:
    await kit.outputs()
    pipeline = await kit.pipeline()
    started = time.perf_counter()
    await kit.outcomes(kit.requests[:4], pipeline)
    seconds = time.perf_counter() - started
    await _at_rest(kit, pipeline, "all requests have ended")
    rest = engines(pipeline)
    draw = random.Random(0)
    count = kit.rounds(CYCLES, 3 * len(kit.requests[:4]), least=3)
    for moment in range(count):
        streams = [pipeline.submit(request) for request in kit.requests[:4]]
        await asyncio.sleep(seconds * moment / count)
        for stream in streams:
            stream.cancel()
        await _at_rest(kit, pipeline, "all requests were cancelled")
        await cycle(kit, pipeline, draw, 2 * seconds)
        await _at_rest(kit, pipeline, "all requests have ended or were cancelled")
    for name, stats in engines(pipeline).items():
        if stats.kv_tokens_used > rest[name].kv_tokens_used:
            fail(
                f"the engine of stage {name!r} holds the KV cache of {stats.kv_tokens_used} tokens at rest, "
                f"{rest[name].kv_tokens_used} before the same requests were cancelled"
            )
    late = await kit.pipeline({"limits.timeout_s": 0.001})
    outcome = await kit.outcome(kit.requests[0], late)
    if not isinstance(outcome, DeadlineExceeded):
        fail(f"limits.timeout_s is 0.001 and a request came to its end: {outcome!r}")
    await _at_rest(kit, late, "a request has run into limits.timeout_s")


async def _at_rest(kit: Kit, pipeline: Pipeline, when: str) -> None:
    limit = kit.samples.cancel_seconds
    if left := await kit.idle(pipeline, limit):
        fail(f"{when}, and {limit:g} s later there is still work: {left}")


@check("cancelled requests leave no memory behind")
async def cancel_frees_memory(kit: Kit) -> None:
    await kit.outputs()
    pipeline = await kit.pipeline()
    draw = random.Random(1)
    was_tracing = tracemalloc.is_tracing()
    if not was_tracing:
        tracemalloc.start()
    try:
        started = time.perf_counter()
        await cycle(kit, pipeline, draw, 0.0)
        seconds = 2 * (time.perf_counter() - started)
        count = kit.rounds(CYCLES // 2, 6 * len(kit.requests[:4]))
        readings, requests = [], 0
        for _ in range(3):
            for _ in range(count):
                requests = await cycle(kit, pipeline, draw, seconds) * count
            await _at_rest(kit, pipeline, "all requests have ended or were cancelled")
            readings.append(memory.read())
    finally:
        if not was_tracing:
            tracemalloc.stop()
    _judge(kit, readings, requests)


def _judge(kit: Kit, readings: list[memory.Memory], requests: int) -> None:
    """A leak shows between every two readings; what shows once is a cache that has filled."""
    first, second, third = readings
    steps = ((first, second), (second, third))
    python = min(after.python - before.python for before, after in steps)
    if python > PYTHON_BYTES + PYTHON_BYTES_PER_REQUEST * requests:
        fail(
            f"{python // requests} bytes stay behind for every request, a third of them complete: "
            f"{memory.growth(second, third)}"
        )
    for kind in ("resident", "device"):
        grown = min(getattr(after, kind) - getattr(before, kind) for before, after in steps)
        if grown > kit.samples.memory_mb * 1e6:
            fail(
                f"{grown / 1e6:.0f} MB of {kind} memory stay behind after {requests} requests, and again after as many"
            )


CANCEL = (cancel_frees_slots, cancel_frees_memory)
