"""The pipeline: order, concurrency, back-pressure, forks and joins, refusals, and a whole recipe across boundaries."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator
from pipes import fresh, idle, pipeline, read, settle, submit
from typing import Any

import numpy as np
import pytest
import toy_stages
import toy_tts
from harness import run, until
from toy_stages import EVENTS, expected

from omni import BadRequest, Busy, SpeechRequest, StageFailed
from omni.config import RecipeConfig
from omni.pipeline import Pipeline
from omni.plugins import Plugins
from omni.transports import codec


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    with fresh():
        yield


# Ways through


@pytest.mark.parametrize("transport", ["inproc", "codec"])
def test_concurrent_requests_each_get_their_own_chunks_in_order(transport: str) -> None:
    async def test() -> None:
        async with pipeline(transport=transport) as pipe:
            texts = [f"{3 + n % 40} x request {n}" for n in range(60)]
            results = await asyncio.gather(*(read(submit(pipe, text)) for text in texts))
            assert results == [expected(text) for text in texts]
            await settle(pipe)
            assert idle(pipe)
            stats = pipe.stats()
            assert (stats.requests_total, stats.completed_total, stats.failed_total) == (60, 60, 0)
            words = sum(3 + n % 40 for n in range(60))
            assert {name: s.items_total for name, s in stats.stages.items()} == {
                "split": 60,
                "encode": words,
                "speak": words,
                "join": words,
            }

    run(test)


FORKS = {
    "joined": ("split:Split", "left:Same<split", "right:Encode<split", "pair:Pair<left,right", "speak:Speak"),
    "deep": (
        "split:Split",
        "left:Same<split",
        "b1:Encode<split",
        "b2:Same<b1",
        "right:Encode<b2",
        "pair:Pair<left,right",
        "speak:Speak",
    ),
}


@pytest.mark.parametrize("transport", ["inproc", "codec"])
@pytest.mark.parametrize("fork", FORKS)
def test_a_fork_is_joined_item_by_item(fork: str, transport: str) -> None:
    async def test() -> None:
        async with pipeline(*FORKS[fork], transport=transport) as pipe:
            texts = [f"{n} x request {n}" for n in (0, 1, 7, 100)]
            assert await asyncio.gather(*(read(submit(pipe, text)) for text in texts)) == [expected(t) for t in texts]

    run(test)


def test_a_fork_whose_branches_wait_for_different_chunks_does_not_lock_up() -> None:
    async def test() -> None:
        stages = ("split:Split", "left:Same<split", "one:Speak<left", "right:Same<split", "two:Speak<right")
        async with pipeline(*stages, "join:Join<one,two", two__first_chunk=40, two__max_chunk=40) as pipe:
            assert sorted(await read(submit(pipe, "100 x both"))) == sorted(2 * expected("100 x both"))

    run(test)


def test_a_stage_keeps_the_pace_of_a_later_one() -> None:
    """All that lies between holds no more than one edge does, and what is in the later stage counts."""

    async def test() -> None:
        stages = (
            "split:Split>last",
            "left:Same",
            "right:Same<split",
            "pair:Pair<left,right",
            "last:Slow",
            "speak:Speak",
        )
        async with pipeline(*stages, last__workers=2) as pipe:
            stream = submit(pipe, "100 x words")
            await until(lambda: [event for event, _ in EVENTS].count("produce") >= 16)
            toy_stages.GATE.open()
            assert await read(stream) == expected("100 x words")
        under_way, most = 0, 0
        for event, _ in EVENTS:
            under_way += {"produce": 1, "encoded": -1}.get(event, 0)
            most = max(most, under_way)
        assert most == 16

    run(test)


def test_an_aggregator_counts_what_each_source_gives() -> None:
    async def test() -> None:
        async with pipeline("split:Split", "a:Same<split", "b:Half<split", "sum:Sum<a,b") as pipe:
            stream = submit(pipe, "9 x words")
            (chunk,) = [chunk async for chunk in stream]
            assert chunk.samples.tolist() == [9, 5]

    run(test)


def test_branches_of_different_lengths_are_an_error() -> None:
    async def test() -> None:
        async with pipeline(
            "split:Split", "left:Same<split", "right:Half<split", "pair:Pair<left,right", "s:Speak"
        ) as p:
            stream = submit(p, "4 x words")
            with pytest.raises(StageFailed):
                await read(stream)
            await settle(p)
            assert idle(p)

    run(test)


def test_poll_gives_what_is_there_and_never_waits() -> None:
    async def test() -> None:
        async with pipeline() as pipe:
            stream = submit(pipe, "3 x poll")
            assert stream.poll() is None
            chunks = [await anext(stream)]
            await settle(pipe)
            while (chunk := stream.poll()) is not None:
                chunks.append(chunk)
            assert [chunk.samples[0].item() for chunk in chunks] == expected("3 x poll")
            with pytest.raises(StopAsyncIteration):
                await anext(stream)
            with pytest.raises(StopAsyncIteration):
                await anext(stream)

    run(test)


def test_gather_waits_for_the_time_the_end_or_no_room() -> None:
    async def test() -> None:
        async with pipeline() as pipe:
            stream = submit(pipe, "3 x few")
            await stream.gather(20)
            assert [stream.poll() is not None for _ in range(4)] == [True, True, True, False]
            stream = submit(pipe, "1000 x many")
            await stream.gather(20)
            assert not stream._edge.room
            stream.cancel()
            stream = submit(pipe, "3 x gate")
            await stream.gather(0.01)
            assert stream.poll() is None
            gathering = asyncio.create_task(stream.gather(20))
            await asyncio.sleep(0)
            stream.cancel()
            await gathering
            toy_stages.GATE.open()

    run(test)


def test_a_request_that_has_ended_is_not_kept_until_its_timeout() -> None:
    async def test() -> None:
        async with pipeline() as pipe:
            ended = []
            for text in ("3 x whole", "1000 x breaks", "1000 x cancelled"):
                stream = submit(pipe, text)
                await anext(stream, None) if "breaks" not in text else None
                stream.cancel()
                ended.append(weakref.ref(stream))
            del stream
            await settle(pipe)
            gc.collect()
            assert [ref() for ref in ended] == [None, None, None]

    run(test)


# Back-pressure


def test_a_client_that_does_not_read_pauses_its_own_request_and_no_other() -> None:
    async def test() -> None:
        workers = {f"{name}__workers": 1 for name in ("split", "encode", "speak")}
        async with pipeline(**workers) as pipe:
            slow = submit(pipe, "100000 x slow")
            await settle(pipe)
            produced = EVENTS.count(("produce", "100000 x slow"))
            # Four edges of 16 items, and what the stages hold between them.
            assert 64 <= produced <= 70
            assert await read(submit(pipe, "500 x fast")) == expected("500 x fast")
            assert EVENTS.count(("produce", "100000 x slow")) == produced
            for _ in range(10):
                await anext(slow)
            await settle(pipe)
            assert EVENTS.count(("produce", "100000 x slow")) == produced + 10
            slow.cancel()
            await settle(pipe)
            assert idle(pipe)

    run(test)


# Refusals


def test_one_request_too_many_is_busy_with_a_time_to_try_again() -> None:
    async def test() -> None:
        async with pipeline(limits__max_requests=2) as pipe:
            streams = [submit(pipe, "2 x gate"), submit(pipe, "2 x gate")]
            with pytest.raises(Busy) as caught:
                submit(pipe, "2 x third")
            assert caught.value.status == 429
            assert caught.value.retry_after is not None
            assert caught.value.retry_after >= 1
            assert pipe.stats().refused_total == 1
            toy_stages.GATE.open()
            for stream in streams:
                assert await read(stream) == expected("2 x gate")
            assert await read(submit(pipe, "2 x third")) == expected("2 x third")

    run(test)


def test_an_id_that_is_under_way_is_refused_and_free_again_afterwards() -> None:
    async def test() -> None:
        async with pipeline() as pipe:
            first = submit(pipe, "3 x one", request_id="mine")
            with pytest.raises(BadRequest):
                submit(pipe, "3 x two", request_id="mine")
            assert await read(first) == expected("3 x one")
            assert await read(submit(pipe, "3 x two", request_id="mine")) == expected("3 x two")

    run(test)


# The whole thing, with an AR engine


def test_a_whole_recipe_gives_the_same_when_every_message_on_every_edge_crosses_a_boundary(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    crossed: list[str] = []

    def counted(cls: type, header: bytes, buffers: list[Any]) -> Any:
        crossed.append(cls.__name__)
        return decode(cls, header, buffers)

    decode = codec.decode
    monkeypatch.setattr(codec, "decode", counted)

    async def speak(transport: str) -> tuple[np.ndarray, Any]:
        plugins = Plugins.load([])
        plugins.add("toy", lambda: toy_tts)
        config = RecipeConfig(plugins.recipe("toy-tts"))
        config.set("transport", transport, "test")
        pipe = await Pipeline.load(config, plugins)
        try:
            request = SpeechRequest(text="One sentence. Another one, longer than the first.", voice="low", seed=7)
            chunks = [chunk.samples async for chunk in pipe.submit(request)]
            edges = {name: s.items_total for name, s in pipe.stats().stages.items()}
            return np.concatenate(chunks), (edges, len(chunks))
        finally:
            await pipe.close()

    async def test() -> None:
        direct, _ = await speak("inproc")
        assert crossed == []
        copied, (taken, chunks) = await speak("codec")
        assert len(direct) > 1000
        assert np.array_equal(direct, copied)
        counts = {name: crossed.count(name) for name in set(crossed)}
        assert counts == {
            "SpeechRequest": 1,
            "Sentence": taken["embed"],
            "Features": taken["embed"],
            "Frame": taken["sing"],
            "AudioChunk": chunks,
        }

    run(test)
