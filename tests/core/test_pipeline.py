"""The pipeline: order, concurrency, back-pressure, forks and joins, and every way a request or a pipeline ends."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
import toy_engine
import toy_stages
import toy_transport
import toy_tts
from harness import Gate, quiet, run, stage_threads, threads_as_before, until
from toy_stages import CHAIN, EVENTS, expected

from omni import AudioChunk, BadRequest, Busy, ConfigError, MissingDependency, SpeechRequest, StageFailed, Unavailable
from omni.config import RecipeConfig
from omni.errors import Cancelled, DeadlineExceeded
from omni.pipeline import Pipeline, RequestStream
from omni.plugins import Plugins
from omni.transports import codec


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    EVENTS.clear()
    toy_stages.GATE = Gate()
    yield
    toy_stages.GATE.open()


@asynccontextmanager
async def pipeline(*stages: str, plugins: Plugins | None = None, **settings: Any) -> AsyncIterator[Pipeline]:
    config = RecipeConfig(toy_stages.recipe(*(stages or CHAIN)))
    for path, value in settings.items():
        config.set(path.replace("__", "."), value, "test")
    loaded = await Pipeline.load(config, plugins or Plugins.load([]))
    try:
        yield loaded
    finally:
        await loaded.close()


def submit(pipe: Pipeline, text: str, **fields: Any) -> RequestStream:
    return pipe.submit(SpeechRequest(text=text), **fields)


async def read(stream: RequestStream) -> list[float]:
    async with stream:
        return [chunk.samples[0].item() async for chunk in stream]


def idle(pipe: Pipeline) -> bool:
    stats = pipe.stats()
    return not stats.active and not any(s.streams or s.queued or s.running for s in stats.stages.values())


async def settle(pipe: Pipeline) -> None:
    for _ in pipe.schedulers:
        for scheduler in pipe.schedulers.values():
            if hasattr(scheduler, "_workers"):
                await quiet(scheduler)


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


# Ends


def test_an_error_keeps_its_type_and_ends_the_work_before_the_client_reads() -> None:
    async def test() -> None:
        async with pipeline() as pipe:
            stream = submit(pipe, "1000 x breaks")
            await settle(pipe)
            assert idle(pipe)
            for _ in range(2):
                with pytest.raises(BadRequest) as caught:
                    await anext(stream)
                assert (caught.value.message, caught.value.param) == ("word 3 is forbidden", "input")
            assert pipe.stats().failed_total == 1

    run(test)


def test_leaving_early_cancels() -> None:
    async def test() -> None:
        async with pipeline() as pipe:
            async with submit(pipe, "100000 x long") as stream:
                assert isinstance(await anext(stream), AudioChunk)
            assert pipe.active == 0
            with pytest.raises(Cancelled):
                await anext(stream)
            stream.cancel()
            await settle(pipe)
            assert idle(pipe)
            assert ("discard", "speak") in EVENTS
            assert (pipe.stats().cancelled_total, pipe.stats().completed_total) == (1, 0)

    run(test)


def test_a_cancelled_request_is_never_a_shorter_success() -> None:
    async def test() -> None:
        async with pipeline() as pipe:
            stream = submit(pipe, "3 x done")
            await anext(stream)
            await settle(pipe)
            assert stream._edge.ended
            stream.cancel()
            with pytest.raises(Cancelled):
                await anext(stream)

    run(test)


def test_cancel_wakes_a_reader() -> None:
    async def test() -> None:
        async with pipeline() as pipe:
            stream = submit(pipe, "3 x gate")
            reading = asyncio.create_task(anext(stream))  # type: ignore[arg-type]
            await toy_stages.GATE.reached()
            stream.cancel()
            with pytest.raises(Cancelled):
                await reading
            toy_stages.GATE.open()
            await settle(pipe)
            assert idle(pipe)

    run(test)


def test_a_reader_that_is_cancelled_can_read_on() -> None:
    async def test() -> None:
        async with pipeline() as pipe:
            stream = submit(pipe, "3 x gate")
            reading = asyncio.create_task(anext(stream))  # type: ignore[arg-type]
            await toy_stages.GATE.reached()
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
            toy_stages.GATE.open()
            assert await read(stream) == expected("3 x gate")

    run(test)


def test_a_request_that_takes_too_long_ends_in_a_timeout() -> None:
    async def test() -> None:
        async with pipeline(limits__timeout_s=0.3) as pipe:
            with pytest.raises(DeadlineExceeded, match=r"0\.3 s") as caught:
                await read(submit(pipe, "3 x gate"))
            assert caught.value.status == 504
            assert pipe.active == 0
            toy_stages.GATE.open()
            await settle(pipe)
            assert idle(pipe)
            # In time: its timer must not strike later.
            assert await read(submit(pipe, "3 x quick")) == expected("3 x quick")

    run(test)


def test_a_client_that_never_reads_is_timed_out_even_when_all_is_made() -> None:
    async def test() -> None:
        async with pipeline(limits__timeout_s=0.3) as pipe:
            stream = submit(pipe, "3 x done")
            await asyncio.wait_for(pipe._idle.wait(), 20)
            with pytest.raises(DeadlineExceeded):
                await anext(stream)
            assert pipe.active == 0

    run(test)


def test_an_aggregator_that_cannot_open_fails_the_request() -> None:
    async def test() -> None:
        async with pipeline() as pipe:
            pipe.schedulers["join"]._stage.open = lambda: 1 / 0  # type: ignore[attr-defined]
            with pytest.raises(StageFailed, match="'join'"):
                await read(submit(pipe, "3 x words"))
            await settle(pipe)
            assert idle(pipe)

    run(test)


def test_a_message_that_cannot_cross_fails_on_the_codec_transport() -> None:
    async def test() -> None:
        async with pipeline(transport="codec") as pipe:
            stream = pipe.submit(SpeechRequest(text="3 x words", params={"callback": print}))
            with pytest.raises(StageFailed, match="does not cross a process boundary"):
                await anext(stream)
            assert idle(pipe)

    run(test)


@pytest.mark.parametrize("copies", [0, 2], ids=["lost", "doubled"])
@pytest.mark.parametrize("edge", [0, 1, 2, 3])
def test_a_lost_or_doubled_item_on_any_edge_is_an_error(
    edge: int, copies: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(toy_transport.FaultyTransport, "edge", edge)
    monkeypatch.setattr(toy_transport.FaultyTransport, "copies", copies)

    async def test() -> None:
        plugins = Plugins.load([])
        plugins.add("faulty", lambda: toy_transport)
        async with pipeline(plugins=plugins, transport="faulty") as pipe:
            with pytest.raises(StageFailed, match="items were sent between two stages"):
                await read(submit(pipe, "5 x words"))
            await settle(pipe)
            assert idle(pipe)
            assert await read(submit(pipe, "5 x words")) == expected("5 x words")

    run(test)


# Drain and close


def test_drain_finishes_what_runs_and_takes_no_more() -> None:
    async def test() -> None:
        async with pipeline() as pipe:
            reading = asyncio.create_task(read(submit(pipe, "3 x gate")))
            await toy_stages.GATE.reached()
            draining = asyncio.create_task(pipe.drain(20))
            await asyncio.sleep(0)
            assert not pipe.ready
            with pytest.raises(Unavailable) as caught:
                submit(pipe, "3 x late")
            assert caught.value.status == 503
            assert caught.value.retry_after is not None
            toy_stages.GATE.open()
            assert await reading == expected("3 x gate")
            assert await draining == 0

    run(test)


def test_drain_cuts_off_what_does_not_finish() -> None:
    async def test() -> None:
        async with pipeline() as pipe:
            streams = [submit(pipe, "3 x gate") for _ in range(3)]
            assert await pipe.drain(0.01) == 3
            for stream in streams:
                with pytest.raises(Unavailable):
                    await anext(stream)
            toy_stages.GATE.open()
            await settle(pipe)
            assert idle(pipe)

    run(test)


def test_close_ends_requests_threads_and_stages_and_can_be_repeated() -> None:
    async def test() -> None:
        with threads_as_before():
            async with pipeline() as pipe:
                streams = [submit(pipe, "100000 x long") for _ in range(4)]
                await anext(streams[0])
                await pipe.close()
                for stream in streams:
                    with pytest.raises(Unavailable):
                        await anext(stream)
                with pytest.raises(Unavailable):
                    submit(pipe, "3 x late")
        closed = [stage for what, stage in EVENTS if what == "close"]
        assert sorted(closed) == ["encode", "join", "speak", "split"]

    run(test)


def test_one_stage_that_fails_to_close_keeps_no_other_from_it(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        with threads_as_before():
            async with pipeline() as pipe:
                pipe.schedulers["encode"]._stage.close = lambda: 1 / 0  # type: ignore[attr-defined]
        assert sorted(stage for what, stage in EVENTS if what == "close") == ["join", "speak", "split"]
        assert "failed to close" in caplog.text

    run(test)


# Loading


@pytest.mark.parametrize(
    ("cls", "kind", "words"),
    [
        ("Unloadable", ConfigError, "the disk is full"),
        ("Unimportable", MissingDependency, "pip install 'omni-recipes[rare]'"),
        ("Unmakeable", ConfigError, "cannot be made"),
    ],
)
def test_a_stage_that_does_not_load_is_named_and_the_others_are_closed(
    cls: str, kind: type[ConfigError], words: str
) -> None:
    async def test() -> None:
        recipe = toy_stages.recipe(f"split:{cls}", *CHAIN[1:], extra="rare")
        with threads_as_before():
            with pytest.raises(kind) as caught:
                await Pipeline.load(RecipeConfig(recipe), Plugins.load([]))
            assert type(caught.value) is kind
        assert "'split'" in caught.value.message
        assert words in caught.value.message
        closed = {stage for what, stage in EVENTS if what == "close"}
        assert closed == {"encode", "speak", "join"} | ({"split"} if cls != "Unmakeable" else set())

    run(test)


def test_an_engine_that_does_not_start_is_closed_and_the_error_names_its_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[Any] = []
    monkeypatch.setattr(toy_engine.ToyEngine, "close", lambda engine: closed.append(engine))

    async def test() -> None:
        plugins = Plugins.load([])
        plugins.add("toy", lambda: toy_tts)
        config = RecipeConfig(toy_tts.recipe())
        config.set("speak.toy.max_running", 2000, "test")
        words = "stage 'speak' of recipe 'toy-tts': max_running: at most 1024"
        with threads_as_before(), pytest.raises(ConfigError, match=words):
            await Pipeline.load(config, plugins)
        assert len(closed) == 1

    run(test)


def test_a_load_that_is_cancelled_does_not_wait_and_closes_what_comes_up_later() -> None:
    gate = Gate()

    class Slow(toy_stages.Split):
        def load(self) -> None:
            gate.passed()
            super().load()

    async def test() -> None:
        before = stage_threads()
        with threads_as_before():
            config = RecipeConfig(toy_stages.recipe("split:Slow", *CHAIN[1:]))
            loading = asyncio.create_task(Pipeline.load(config, Plugins.load([])))
            await gate.reached()
            loading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await loading
            assert ("close", "split") not in EVENTS
            gate.open()
            closed = {("close", name) for name in ("split", "encode", "speak", "join")}
            await until(lambda: closed <= set(EVENTS) and not stage_threads() - before)
            assert len(EVENTS) == 2 * len(closed)

    toy_stages.Slow = Slow  # type: ignore[attr-defined]
    try:
        run(test)
    finally:
        del toy_stages.Slow  # type: ignore[attr-defined]


@pytest.mark.parametrize(("setting", "known"), [("executor", "inprocess"), ("transport", "codec, inproc")])
def test_an_unknown_executor_or_transport_is_an_error_that_lists_what_there_is(setting: str, known: str) -> None:
    async def test() -> None:
        with pytest.raises(ConfigError, match=f"no {setting} 'pigeon'; there are: {known}"):
            async with pipeline(**{setting: "pigeon"}):
                pass

    run(test)


def test_limits_out_of_range_are_an_error_before_anything_is_loaded() -> None:
    async def test() -> None:
        with pytest.raises(ConfigError, match="max_requests"):
            async with pipeline(limits__max_requests=0):
                pass
        assert EVENTS == []

    run(test)


def test_progress_tells_what_is_loading() -> None:
    async def test() -> None:
        told: list[tuple[str, str, str]] = []
        pipe = await Pipeline.load(
            RecipeConfig(toy_stages.recipe(*CHAIN)), Plugins.load([]), lambda *report: told.append(report)
        )
        await pipe.close()
        assert told[:2] == [("toy", "weights", "locating"), ("toy", "weights", "none needed")]
        for stage in ("split", "encode", "speak", "join"):
            assert told.index(("toy", stage, "loading")) < told.index(("toy", stage, "ready"))

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
