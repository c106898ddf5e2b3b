"""500 requests, a third of them cancelled at random moments: nothing is left of any."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from typing import Any

import pytest
import toy_stages
import toy_tts
from harness import run, stage_threads, threads_as_before

from omni import SpeechRequest
from omni.config import RecipeConfig
from omni.errors import Cancelled
from omni.pipeline import Pipeline
from omni.plugins import Plugins

COUNT = 500
AT_ONCE = 100

FORKED = (
    "split:Split",
    "left:Same<split",
    "right:Encode<split",
    "pair:Pair<left,right",
    "speak:Speak",
    "join:Join",
)


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    toy_stages.EVENTS.clear()
    yield
    toy_stages.EVENTS.clear()


def forked() -> RecipeConfig:
    config = RecipeConfig(toy_stages.recipe(*FORKED))
    for path, value in {
        "right.cache_mb": 1.0,
        "right.max_wait_ms": 1.0,
        "speak.first_chunk": 2,
        "speak.chunk_growth": 2.0,
        "speak.max_chunk": 8,
    }.items():
        config.set(path, value, "test")
    return config


def spoken() -> RecipeConfig:
    return RecipeConfig(toy_tts.recipe())


def text_of(number: int) -> str:
    return f"{5 + number % 40} x request {number % 50}"


async def one(pipe: Pipeline, number: int, dice: random.Random, doomed: bool) -> list[float] | None:
    """Read a request to its end, or cancel it after some items, some turns of the loop, or both; None: cancelled."""
    stream = pipe.submit(SpeechRequest(text=text_of(number), seed=number % 50))
    items, turns = (dice.choice([0, 1, 5]), dice.choice([0, 1, 3, 10, 100])) if doomed else (10**9, 0)
    samples: list[float] = []
    try:
        async with stream:
            while items > 0:
                samples += (await anext(stream)).samples.tolist()
                items -= 1
            for _ in range(turns):
                await asyncio.sleep(0)
    except StopAsyncIteration:
        return samples
    except Cancelled:
        raise AssertionError("only this reader cancels") from None
    return None


async def all_idle(pipe: Pipeline) -> dict[str, Any]:
    while True:
        stats = pipe.stats()
        left = {n: s for n, s in stats.stages.items() if s.streams or s.queued or s.running}
        jobs = sum(s._workers.pending for s in pipe.schedulers.values() if hasattr(s, "_workers"))
        if not (stats.active or left or jobs):
            return {"completed": stats.completed_total, "cancelled": stats.cancelled_total}
        await asyncio.sleep(0)


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("config", [forked, spoken])
def test_cancelled_requests_leave_nothing_and_the_others_are_whole(config: Any, seed: int) -> None:
    async def test() -> None:
        plugins = Plugins.load([])
        plugins.add("toy", lambda: toy_tts)
        pipe = await Pipeline.load(config(), plugins)
        threads = stage_threads()
        dice = random.Random(seed)
        gate = asyncio.Semaphore(AT_ONCE)
        doomed = set(dice.sample(range(COUNT), COUNT // 3))

        async def limited(number: int) -> list[float] | None:
            async with gate:
                return await one(pipe, number, random.Random(seed * COUNT + number), number in doomed)

        results = await asyncio.gather(*(limited(number) for number in range(COUNT)))
        ended = await all_idle(pipe)
        assert stage_threads() == threads
        whole = [number for number, result in enumerate(results) if result is not None]
        assert set(range(COUNT)) - set(whole) <= doomed
        assert len(whole) < COUNT - COUNT // 6, "too few were cancelled to show anything"
        assert ended == {"completed": len(whole), "cancelled": COUNT - len(whole)}
        same = {text_of(number): results[number] for number in whole}
        for number in whole:
            if config is forked:
                assert results[number] == pytest.approx(toy_stages.expected(text_of(number)))
            else:
                assert results[number] == same[text_of(number)]
        for scheduler in pipe.schedulers.values():
            for held in ("_ready", "_waiting", "_flights"):
                assert not getattr(scheduler, held, None)
            engine = getattr(scheduler, "_engine", None)
            assert engine is None or engine.stats().kv_tokens_used == engine.stats().running == 0
        await pipe.close()

    with threads_as_before():
        run(test)
