"""What a chunk pays on its way through the runtime, without HTTP.

* hop: from the hands of one stage into the hands of the next, each in its own thread, nothing else going on (the
  next chunk is made when the last has arrived). Limit: 60 µs median. The first row is the least that it can be: a
  thread wakes the loop, the loop wakes a thread.
* request: processor and wall time of a whole request of 20 chunks of 4 KB, alone and 64 at a time.

Waking a core that has gone to sleep can cost more than all else, above all on a virtual machine; ``--awake`` keeps the
cores from it by idle-priority loops beside the measuring.

    python bench/hop.py [--awake] [--hops 3000] [--requests 2000] [--loop uvloop|asyncio]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import uvloop

from omni import (
    Aggregator,
    AudioChunk,
    DecodeJob,
    Decoder,
    Encoder,
    Limits,
    Message,
    Preprocess,
    Recipe,
    Speech,
    SpeechRequest,
    StageSpec,
)
from omni.config import RecipeConfig
from omni.pipeline import Pipeline
from omni.plugins import Plugins

LIMIT_US = 60.0
SOUND = np.zeros(2048, np.float32)
HOPS: list[float] = []
ARRIVED = threading.Event()


class Ping(Message):
    left: float


def sound() -> AudioChunk:
    return AudioChunk(samples=SOUND, sample_rate=24000)


def arrive(item: Ping) -> AudioChunk:
    HOPS.append(time.perf_counter() - item.left)
    ARRIVED.set()
    return sound()


class PingPong(Preprocess[SpeechRequest, Ping]):
    def process(self, item: SpeechRequest) -> Iterator[Ping]:
        for _ in range(int(item.text)):
            yield Ping(left=time.perf_counter())
            ARRIVED.wait()
            ARRIVED.clear()


class ToPool(Preprocess[Ping, AudioChunk]):
    def process(self, item: Ping) -> AudioChunk:
        return arrive(item)


class ToBatch(Encoder[Ping, AudioChunk]):
    def encode(self, batch: Sequence[Ping]) -> Sequence[AudioChunk]:
        return [arrive(item) for item in batch]


class ToStream(Decoder[Ping, AudioChunk]):
    def decode(self, batch: Sequence[DecodeJob]) -> Sequence[Sequence[AudioChunk]]:
        return [[arrive(item) for item in job.items] for job in batch]


class ToCollect(Aggregator[Ping, AudioChunk, None]):
    def open(self) -> None:
        return None

    def add(self, state: None, item: Ping, source: str) -> Iterable[AudioChunk]:
        return [arrive(item)]


class Chunks(Preprocess[SpeechRequest, AudioChunk]):
    def process(self, item: SpeechRequest) -> Iterator[AudioChunk]:
        return (sound() for _ in range(int(item.text)))


class Same(Encoder[AudioChunk, AudioChunk]):
    def encode(self, batch: Sequence[AudioChunk]) -> Sequence[AudioChunk]:
        return batch


class Vocode(Decoder[AudioChunk, AudioChunk]):
    def decode(self, batch: Sequence[DecodeJob]) -> Sequence[Sequence[AudioChunk]]:
        return [job.items for job in batch]


async def load(*classes: type) -> Pipeline:
    names = [cls.__name__.lower() for cls in classes]
    stages = [
        StageSpec(name, f"{Path(__file__).stem}:{cls.__name__}", after=names[i - 1 : i] if i else ())
        for i, (name, cls) in enumerate(zip(names, classes, strict=True))
    ]
    recipe = Recipe(
        name="hop",
        summary="-",
        license="-",
        task=Speech(sample_rate=24000),
        stages=tuple(stages),
        limits=Limits(max_requests=1000),
    )
    return await Pipeline.load(RecipeConfig(recipe), Plugins.load([]))


async def consume(pipeline: Pipeline, chunks: int) -> tuple[float, float]:
    """Seconds to the first and to the last chunk."""
    start = time.perf_counter()
    first, count = 0.0, 0
    async with pipeline.submit(SpeechRequest(text=str(chunks))) as stream:
        async for _ in stream:
            first = first or time.perf_counter() - start
            count += 1
    assert count == chunks
    return first, time.perf_counter() - start


async def bare(count: int) -> list[float]:
    """Seconds from a thread over the loop into another thread, nothing more."""
    loop, jobs, found = asyncio.get_running_loop(), SimpleQueue[float | None](), list[float]()
    done = loop.create_future()

    def far() -> None:
        while (left := jobs.get()) is not None:
            found.append(time.perf_counter() - left)
            ARRIVED.set()

    def near() -> None:
        for _ in range(count):
            loop.call_soon_threadsafe(jobs.put, time.perf_counter())
            ARRIVED.wait()
            ARRIVED.clear()
        jobs.put(None)
        loop.call_soon_threadsafe(done.set_result, None)

    threads = [threading.Thread(target=part) for part in (far, near)]
    for thread in threads:
        thread.start()
    await done
    return found


@contextmanager
def kept_awake() -> Iterator[None]:
    spin = "import os\nos.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))\nwhile True: pass"
    running = [subprocess.Popen([sys.executable, "-c", spin]) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def row(name: str, seconds: list[float]) -> float:
    """Print it; the median in µs."""
    ordered = sorted(seconds)
    median = 1e6 * statistics.median(ordered)
    print(f"{name} | {median:.1f} | {1e6 * ordered[int(0.95 * len(ordered))]:.1f}")
    return median


async def hops(count: int) -> float:
    """Prints a row per kind of consumer; the largest median."""
    print("from a Preprocess to | median µs | p95 µs\n--- | --- | ---")
    row("(bare threads)", await bare(count))
    worst = 0.0
    for cls in (ToPool, ToBatch, ToStream, ToCollect):
        pipeline = await load(PingPong, cls)
        await consume(pipeline, 200)
        HOPS.clear()
        await consume(pipeline, count)
        await pipeline.close()
        worst = max(worst, row(cls.__name__[2:], HOPS))
    return worst


async def requests(count: int) -> None:
    print("\nstages | at once | first chunk ms | request ms | CPU ms per request\n--- | --- | --- | --- | ---")
    for classes in ((Chunks,), (Chunks, Vocode), (Chunks, Same, Vocode)):
        pipeline = await load(*classes)
        await asyncio.gather(*(consume(pipeline, 20) for _ in range(64)))
        for at_once in (1, 64):
            total = count if at_once > 1 else count // 4
            gate = asyncio.Semaphore(at_once)
            cpu = time.process_time()

            async def one(gate: asyncio.Semaphore = gate, pipeline: Pipeline = pipeline) -> tuple[float, float]:
                async with gate:
                    return await consume(pipeline, 20)

            times = await asyncio.gather(*(one() for _ in range(total)))
            cpu = (time.process_time() - cpu) / total
            first, whole = (statistics.median(column) * 1e3 for column in zip(*times, strict=True))
            print(f"{len(classes)} | {at_once} | {first:.2f} | {whole:.2f} | {cpu * 1e3:.3f}")
        await pipeline.close()


async def bench(options: Any) -> bool:
    with kept_awake() if options.awake else nullcontext():
        worst = await hops(options.hops)
    await requests(options.requests)
    print(f"\nhop, largest median: {worst:.1f} µs (limit {LIMIT_US:.0f} µs)")
    return worst <= LIMIT_US


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hops", type=int, default=3000)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--awake", action="store_true", help="keep the cores from sleeping while hops are measured")
    parser.add_argument("--loop", choices=("uvloop", "asyncio"), default="uvloop")
    options = parser.parse_args()
    # Stages are looked up by module name: this file and not a second copy of it.
    sys.modules[Path(__file__).stem] = sys.modules[__name__]
    run = uvloop.run if options.loop == "uvloop" else asyncio.run
    raise SystemExit(0 if run(bench(options)) else 1)


if __name__ == "__main__":
    main()
