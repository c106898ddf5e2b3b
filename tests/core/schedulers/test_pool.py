"""The pool scheduler: order, room, cancelling, generators, and whatever a stage may do wrong."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from harness import Gate, Item, Request, is_idle, mailbox, make, quiet, run, threads_as_before

from omni import BadRequest, Preprocess, StageFailed
from omni.schedulers import worker
from omni.schedulers.pool import PoolScheduler


@pytest.fixture(autouse=True, params=[0.0, 60.0], ids=["item by item", "long turns"])
def turn(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> float:
    """How long a job goes on with the next items: what comes out must not depend on it."""
    monkeypatch.setattr(worker, "TURN", request.param)
    return float(request.param)


class Scripted(Preprocess[Item, Item]):
    """Does what the test says with each item."""

    script: Callable[[Item], Any] = staticmethod(lambda item: item)

    def process(self, item: Item) -> Any:
        return self.script(item)


def pool(script: Callable[[Item], Any], **options: Any) -> PoolScheduler:
    stage = make(Scripted, **options)
    stage.script = script
    return PoolScheduler(stage, mailbox())


def counting(count: int, log: list[Any] | None = None, base: int = 0) -> Iterator[Item]:
    """A generator that leaves a trace of how far it came and of being closed."""
    try:
        for i in range(count):
            if log is not None:
                log.append(i)
            yield Item(value=base + i)
    finally:
        if log is not None:
            log.append(f"closed in {threading.current_thread().name}")


def test_single_results_and_streams_keep_their_order() -> None:
    async def test() -> None:
        scheduler = pool(lambda item: counting(item.value, base=100 * item.value) if item.value else item, workers=4)
        request = Request(scheduler).put(3, 0, 2, 0, 20, 1).end()
        expected = [300, 301, 302, 0, 200, 201, 0, *range(2000, 2020), 100]
        assert await request.rest() == expected
        assert is_idle(scheduler)
        assert scheduler.stats().items_total == 6
        await scheduler.close()

    run(test)


def test_an_empty_request_ends_empty() -> None:
    async def test() -> None:
        scheduler = pool(lambda item: item)
        assert await Request(scheduler).end().rest() == []
        await scheduler.close()

    run(test)


def test_a_generator_runs_only_as_far_as_there_is_room_and_holds_no_thread() -> None:
    async def test() -> None:
        log: list[Any] = []
        scheduler = pool(lambda item: counting(1000, log) if item.value else item, workers=1)
        slow = Request(scheduler, "slow", capacity=4).put(1).end()
        await quiet(scheduler)
        assert log == [0, 1, 2, 3]
        # The only thread is free for others.
        assert await Request(scheduler, "other").put(0).end().rest() == [0]
        assert (await slow.take()).value == 0
        await quiet(scheduler)
        assert log == [0, 1, 2, 3, 4]
        assert await slow.rest() == list(range(1, 1000))
        await scheduler.close()

    run(test)


def test_a_slow_item_gives_its_thread_back_after_each(turn: float) -> None:
    gate, order = Gate(), []

    def script(item: Item) -> Item:
        order.append(item.value)
        if item.value == 2:
            gate.passed()
        return item

    async def test() -> None:
        scheduler = pool(script, workers=1)
        long = Request(scheduler, "long").put(1, 2, 3).end()
        await gate.reached()
        short = Request(scheduler, "short").put(10).end()
        gate.open()
        assert await short.rest() == [10]
        assert await long.rest() == [1, 2, 3]
        assert order == ([1, 2, 3, 10] if turn else [1, 2, 10, 3])
        await scheduler.close()

    run(test)


def test_a_job_leaves_what_it_has_not_begun_on_the_edge() -> None:
    async def test() -> None:
        scheduler = pool(lambda item: item)
        request = Request(scheduler, capacity=3).put(*range(10)).end()
        await quiet(scheduler)
        assert len(request.output.items) == 3
        assert len(request.source.items) == 7
        assert scheduler.stats().items_total == 3
        assert await request.rest() == list(range(10))
        await scheduler.close()

    run(test)


def test_cancel_inside_a_generator_stops_it_at_its_next_item_and_closes_it_in_a_worker() -> None:
    gate, log = Gate(), []

    def held(item: Item) -> Iterator[Item]:
        for value in counting(1000, log):
            if value.value == 1:
                gate.passed()
            yield value

    async def test() -> None:
        scheduler = pool(held, workers=1)
        request = Request(scheduler).put(1).end()
        await gate.reached()
        request.cancel()
        assert scheduler.stats().streams == 0
        assert scheduler.stats().running == 1
        gate.open()
        await quiet(scheduler)
        assert log == [0, 1, "closed in omni-toy-0"]
        assert is_idle(scheduler)
        assert not request.output.ended, "a cancelled request gets no more word"
        await scheduler.close()

    run(test)


def test_cancel_closes_a_generator_that_waits_for_room() -> None:
    async def test() -> None:
        log: list[Any] = []
        scheduler = pool(lambda item: counting(1000, log))
        request = Request(scheduler, capacity=2).put(1).end()
        await quiet(scheduler)
        request.cancel()
        await quiet(scheduler)
        assert log[:2] == [0, 1]
        assert log[2].startswith("closed in omni-toy-")
        await scheduler.close()

    run(test)


def test_cancel_before_the_work_begins_spares_it() -> None:
    gate, done = Gate(), []

    def script(item: Item) -> Item:
        if item.value == 0:
            gate.passed()
        done.append(item.value)
        return item

    async def test() -> None:
        scheduler = pool(script, workers=1)
        first, second = Request(scheduler, "first").put(0).end(), Request(scheduler, "second").put(1).end()
        await gate.reached()
        second.cancel()
        gate.open()
        assert await first.rest() == [0]
        await quiet(scheduler)
        assert done == [0]
        await scheduler.close()

    run(test)


def test_errors_keep_their_type_and_field_and_overtake_items() -> None:
    def script(item: Item) -> Iterator[Item]:
        yield from counting(3)
        raise BadRequest("no sevens", param="input")

    async def test() -> None:
        scheduler = pool(script)
        request = Request(scheduler).put(7).end()
        error = await request.error()
        assert isinstance(error, BadRequest)
        assert (error.message, error.param) == ("no sevens", "input")
        assert is_idle(scheduler)
        await scheduler.close()

    run(test)


@pytest.mark.parametrize(
    "fault",
    [
        lambda item: 1 / 0,
        lambda item: sys.exit(3),
        lambda item: [item],
        lambda item: None,
        lambda item: iter([item, "text"]),
    ],
    ids=["bug", "exit", "list", "none", "wrong item"],
)
def test_a_bug_fails_its_request_names_the_stage_and_leaves_the_threads_alive(fault: Callable[[Item], Any]) -> None:
    async def test() -> None:
        scheduler = pool(lambda item: fault(item) if item.value else item, workers=1)
        error = await Request(scheduler, "bad").put(1).end().error()
        assert isinstance(error, StageFailed)
        assert "'toy'" in error.message
        assert await Request(scheduler, "good").put(0).end().rest() == [0]
        await scheduler.close()

    run(test)


def test_a_generator_that_will_not_close_leaves_the_threads_alive() -> None:
    def stubborn(item: Item) -> Iterator[Item]:
        try:
            yield from counting(100)
        finally:
            raise RuntimeError("no")

    async def test() -> None:
        scheduler = pool(lambda item: stubborn(item) if item.value else item, workers=1)
        request = Request(scheduler, "bad", capacity=1).put(1).end()
        await quiet(scheduler)
        request.cancel()
        assert await Request(scheduler, "good").put(0).end().rest() == [0]
        await scheduler.close()

    run(test)


def test_an_error_from_upstream_does_not_wait_for_the_work_under_way() -> None:
    gate = Gate()

    def script(item: Item) -> Item:
        gate.passed()
        return item

    async def test() -> None:
        scheduler = pool(script)
        request = Request(scheduler).put(1)
        await gate.reached()
        request.source.fail(BadRequest("upstream"))
        assert (await request.error()).message == "upstream"
        gate.open()
        await scheduler.close()

    run(test)


def test_close_with_work_under_way_waits_for_it_and_closes_its_generator() -> None:
    gate, log = Gate(), []

    def held(item: Item) -> Iterator[Item]:
        for value in counting(1000, log):
            gate.passed()
            yield value

    async def test() -> None:
        with threads_as_before():
            scheduler = pool(held, workers=3)
            scheduler._stage.close = lambda: log.append("stage closed")
            Request(scheduler).put(1).end()
            await gate.reached()
            gate.open()
            await scheduler.close()
        assert log[-1] == "stage closed"
        assert log[-2].startswith("closed in omni-toy-")
        assert is_idle(scheduler)

    run(test)


def test_a_stage_is_not_closed_under_a_thread_that_is_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "PATIENCE", 0.01)

    async def test() -> None:
        with threads_as_before():
            gate = Gate()
            closed = threading.Event()
            scheduler = pool(lambda item: gate.passed() or item)
            monkeypatch.setattr(scheduler._stage, "close", closed.set)
            Request(scheduler).put(1).end()
            await gate.reached()
            await scheduler.close()
            assert not closed.is_set()
            (closer,) = (thread for thread in threading.enumerate() if thread.name == f"omni-{scheduler.name}-close")
            gate.open()
            await asyncio.to_thread(closer.join, 20)
            assert closed.is_set()

    run(test)
