"""Every way in which a request or a pipeline ends."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pipes import fresh, idle, pipeline, read, settle, submit

import pytest
import toy_stages
import toy_transport
from harness import run, threads_as_before
from toy_stages import EVENTS, expected

from omni import AudioChunk, BadRequest, SpeechRequest, StageFailed, Unavailable
from omni.errors import Cancelled, DeadlineExceeded
from omni.plugins import Plugins


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    with fresh():
        yield


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
