"""500 requests, a third of them cancelled at random moments: what is left behind?

A server of its own serves a recipe of four stages (split, encode with a cache, decode, join); clients read to the
end, or hang up after a random number of bytes. Afterwards nothing may run or wait, no thread may have come or gone,
and the resident memory may have grown by less than 20 MB since the warm-up.

    python bench/soak.py [--requests 500] [--at-once 50] [--seed 1] [--inprocess]
"""

from __future__ import annotations

import argparse
import asyncio
import random
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
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

LIMIT_MB = 20.0
CHUNKS, SAMPLES, RATE = 60, 8000, 24000
MIB = 1024.0 * 1024.0

One = Callable[[int, random.Random, bool], Awaitable[bool]]
"""A request by number, cancelled if the last argument says so; whether it was whole."""


class Piece(Message):
    number: int
    content: np.ndarray


class Split(Preprocess[SpeechRequest, Piece]):
    def process(self, item: SpeechRequest) -> Iterator[Piece]:
        seed = int(item.text.rsplit(" ", 1)[-1])
        for number in range(CHUNKS):
            yield Piece(number=number, content=np.full(SAMPLES, seed + number, np.float32))


class Encode(Encoder[Piece, Piece]):
    def encode(self, batch: Sequence[Piece]) -> Sequence[Piece]:
        return [Piece(number=item.number, content=np.sin(item.content)) for item in batch]


class Decode(Decoder[Piece, AudioChunk]):
    def open(self, first: Piece) -> Any:
        return np.zeros(100_000, np.float32)

    def decode(self, batch: Sequence[DecodeJob]) -> Sequence[Sequence[AudioChunk]]:
        return [[AudioChunk(samples=0.1 * item.content, sample_rate=RATE) for item in job.items] for job in batch]


class Join(Aggregator[AudioChunk, AudioChunk, None]):
    def open(self) -> None:
        return None

    def add(self, state: None, item: AudioChunk, source: str) -> Iterable[AudioChunk]:
        return [item]


def recipe() -> Recipe:
    return Recipe(
        name="soak",
        summary="Four stages that do little",
        license="Apache-2.0",
        task=Speech(sample_rate=RATE),
        stages=(
            StageSpec("split", "soak:Split", stream=True),
            StageSpec("encode", "soak:Encode", after="split", options={"cache_mb": 4.0, "max_wait_ms": 1.0}),
            StageSpec("decode", "soak:Decode", after="encode", options={"max_chunk": 4, "chunk_growth": 2.0}),
            StageSpec("join", "soak:Join", after="decode"),
        ),
        limits=Limits(max_requests=1000),
    )


@dataclass(frozen=True)
class Left:
    """What a process holds at rest."""

    rss: float
    threads: int
    tasks: float
    queued: float
    streams: float

    @property
    def idle(self) -> bool:
        return not (self.tasks or self.queued or self.streams)


async def at_rest(look: Callable[[], Awaitable[Left]], seconds: float = 10.0) -> Left:
    """Look until nothing runs, or the time is over."""
    end = time.monotonic() + seconds
    while True:
        left = await look()
        if left.idle or time.monotonic() > end:
            return left
        await asyncio.sleep(0.05)


async def put_through(one: One, count: int, at_once: int, seed: int) -> tuple[int, int]:
    """How many requests were whole, and how many were cancelled."""
    dice = random.Random(seed)
    doomed = set(dice.sample(range(count), count // 3))
    gate = asyncio.Semaphore(at_once)

    async def limited(number: int) -> bool:
        async with gate:
            return await one(number, random.Random(seed * count + number), number in doomed)

    whole = await asyncio.gather(*(limited(number) for number in range(count)))
    assert set(range(count)) - {n for n, is_whole in enumerate(whole) if is_whole} <= doomed
    return sum(whole), count - sum(whole)


async def soak(one: One, look: Callable[[], Awaitable[Left]], options: argparse.Namespace) -> bool:
    await put_through(one, options.requests // 2, options.at_once, options.seed + 1)
    before = await at_rest(look)
    start = time.perf_counter()
    whole, cancelled = await put_through(one, options.requests, options.at_once, options.seed)
    seconds = time.perf_counter() - start
    after = await at_rest(look)
    growth = after.rss - before.rss
    good = after.idle and after.threads == before.threads and growth < LIMIT_MB
    print(f"requests | {whole} whole, {cancelled} cancelled, in {seconds:.1f} s")
    print(f"resident memory | {before.rss:.1f} MB -> {after.rss:.1f} MB: {growth:+.1f} MB (limit {LIMIT_MB:.0f} MB)")
    print(f"stage tasks | {after.tasks:.0f} running")
    print(f"queue entries | {after.queued:.0f}, open streams {after.streams:.0f}")
    print(f"threads | {before.threads} -> {after.threads}")
    print("passed" if good else "FAILED")
    return good


async def inprocess(options: argparse.Namespace) -> bool:
    pipeline = await Pipeline.load(RecipeConfig(recipe()), Plugins.load([]))
    process = psutil.Process()

    async def one(number: int, dice: random.Random, doomed: bool) -> bool:
        count, stop = 0, dice.randrange(CHUNKS) if doomed else -1
        async with pipeline.submit(SpeechRequest(text=f"request {number % 100}")) as stream:
            for _ in range(dice.randrange(20) if doomed else 0):
                await asyncio.sleep(0)
            async for _ in stream:
                if count == stop:
                    return False
                count += 1
        assert count == CHUNKS
        return True

    async def look() -> Left:
        stages = pipeline.stats().stages.values()
        tasks, queued, streams = (sum(getattr(s, name) for s in stages) for name in ("running", "queued", "streams"))
        return Left(process.memory_info().rss / MIB, process.num_threads(), tasks, queued, streams)

    try:
        return await soak(one, look, options)
    finally:
        await pipeline.close()


async def over_http(options: argparse.Namespace, url: str, process: psutil.Process) -> bool:
    whole = CHUNKS * SAMPLES * 2

    async with httpx.AsyncClient(base_url=url, timeout=60, limits=httpx.Limits(max_connections=None)) as client:

        async def one(number: int, dice: random.Random, doomed: bool) -> bool:
            size, stop = 0, dice.randrange(whole) if doomed else whole
            body = {"input": f"request {number % 100}", "response_format": "pcm"}
            async with client.stream("POST", "/v1/audio/speech", json=body) as answer:
                assert answer.status_code == 200, (await answer.aread()).decode()
                async for data in answer.aiter_raw():
                    size += len(data)
                    if size > stop:
                        return False
            assert size == whole
            return True

        async def look() -> Left:
            text = (await client.get("/metrics")).text
            tasks, queued, streams = (
                sum(float(value) for value in re.findall(rf"^omni_stage_{name}{{.*?}} (\S+)$", text, re.MULTILINE))
                for name in ("running", "queued", "streams")
            )
            return Left(process.memory_info().rss / MIB, process.num_threads(), tasks, queued, streams)

        return await soak(one, look, options)


def with_server(options: argparse.Namespace) -> bool:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    server = subprocess.Popen([sys.executable, __file__, "--serve", str(port)])
    try:
        wait_until_ready(url, server)
        return uvloop.run(over_http(options, url, psutil.Process(server.pid)))
    finally:
        server.terminate()
        server.wait(30)


def wait_until_ready(url: str, server: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 60
    while server.poll() is None and time.monotonic() < end:
        try:
            urllib.request.urlopen(f"{url}/ready", timeout=1).close()
            return
        except OSError:
            time.sleep(0.05)
    raise SystemExit("the server did not start")


def serve_here(port: int) -> None:
    from omni.config import configure
    from omni.server.app import create_app
    from omni.server.run import bind, serve
    from omni.server.settings import ServerSettings
    from omni.service import Service

    async def load() -> Service:
        return await Service.launch(configure([recipe()]), Plugins.load([]))

    serve(create_app(load, ServerSettings(port=port)), bind("127.0.0.1", port))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--at-once", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--inprocess", action="store_true", help="without HTTP, in this process")
    parser.add_argument("--serve", type=int, metavar="PORT", help=argparse.SUPPRESS)
    options = parser.parse_args()
    # Stages are looked up by module name: this file and not a second copy of it.
    sys.modules[Path(__file__).stem] = sys.modules[__name__]
    if options.serve:
        serve_here(options.serve)
    else:
        raise SystemExit(0 if (uvloop.run(inprocess(options)) if options.inprocess else with_server(options)) else 1)


if __name__ == "__main__":
    main()
