"""The batch scheduler without a cache: batch sizes, waiting, turns, order, errors, cancelling."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from typing import Any

import pytest
from harness import Gate, Item, Request, is_idle, mailbox, make, quiet, run, threads_as_before, turns, until

from omni import BadRequest, Encoder, StageFailed
from omni.schedulers.batch import BatchScheduler


class Double(Encoder[Item, Item]):
    """Twice the value; certain values break the batch they are in."""

    def load(self) -> None:
        self.batches: list[list[int]] = []
        self.gates: dict[int, Gate] = {}

    def encode(self, batch: Sequence[Item]) -> Sequence[Item]:
        self.batches.append([item.value for item in batch])
        for item in batch:
            if item.value in self.gates:
                self.gates[item.value].passed()
            match item.value:
                case 13:
                    raise BadRequest("13", param="input")
                case 14:
                    raise RuntimeError("14")
                case 15:
                    sys.exit(15)
        return [Item(value=2 * item.value) for item in batch]


def batch(*gated: int, **options: Any) -> tuple[BatchScheduler, Any]:
    stage = make(Double, **options)
    stage.load()
    stage.gates = {value: Gate() for value in gated}
    return BatchScheduler(stage, mailbox()), stage


def test_items_that_come_together_share_batches_across_requests() -> None:
    async def test() -> None:
        scheduler, stage = batch(max_batch=4)
        requests = [Request(scheduler, f"r{n}").put(n).end() for n in range(10)]
        for n, request in enumerate(requests):
            assert await request.rest() == [2 * n]
        assert stage.batches == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
        assert is_idle(scheduler)
        stats = scheduler.stats()
        assert (stats.items_total, stats.steps_total) == (10, 3)
        await scheduler.close()

    run(test)


def test_a_long_request_does_not_starve_a_short_one() -> None:
    async def test() -> None:
        scheduler, stage = batch(max_batch=2)
        long, short = Request(scheduler, "long").put(*range(10)).end(), Request(scheduler, "short").put(100).end()
        assert await short.rest() == [200]
        assert await long.rest() == [2 * n for n in range(10)]
        assert stage.batches[0] == [0, 100]
        await scheduler.close()

    run(test)


class Weighed(Double):
    """An item costs its value."""

    def cost(self, item: Item) -> float:
        if item.value == 99:
            raise BadRequest("99", param="input")
        return float(item.value)


def weighed(*gated: int, **options: Any) -> tuple[BatchScheduler, Any]:
    stage = make(Weighed, **options)
    stage.load()
    stage.gates = {value: Gate() for value in gated}
    return BatchScheduler(stage, mailbox()), stage


@pytest.mark.parametrize("cache_mb", [0, 1])
def test_a_batch_holds_so_much_work_and_no_more(cache_mb: float) -> None:
    async def test() -> None:
        scheduler, stage = weighed(30, max_batch=2, max_cost=10, cache_mb=cache_mb)
        first = Request(scheduler, "first").put(30).end()
        await stage.gates[30].reached()
        request = Request(scheduler, "r").put(3, 7, 20, 8, 4, 1, 2).end()
        await until(lambda: scheduler.stats().queued == 7)
        await turns(10)
        stage.gates[30].open()
        assert await first.rest() == [60]
        assert await request.rest() == [6, 14, 40, 16, 8, 2, 4]
        # As much as fits, one that alone is more, one that the next does not fit beside, two because two are a batch.
        assert stage.batches[1:] == [[3, 7], [20], [8], [4, 1], [2]]
        assert is_idle(scheduler)
        await scheduler.close()

    run(test)


def test_who_asks_for_little_does_not_wait_for_all_that_another_asks_for() -> None:
    """Also where a cache takes everything in at once."""

    async def test() -> None:
        scheduler, stage = weighed(50, max_batch=1, cache_mb=1)
        long = Request(scheduler, "long").put(*range(50, 60)).end()
        await stage.gates[50].reached()
        await until(lambda: scheduler.stats().queued == 9)
        short = Request(scheduler, "short").put(1, 2).end()
        await until(lambda: scheduler.stats().queued == 11)
        await turns(10)
        stage.gates[50].open()
        assert await short.rest() == [2, 4]
        assert await long.rest() == [2 * n for n in range(50, 60)]
        assert stage.batches[:4] == [[50], [1], [2], [51]]
        await scheduler.close()

    run(test)


def test_a_cost_that_raises_fails_its_request_alone() -> None:
    async def test() -> None:
        scheduler, _ = weighed()
        bad, good = Request(scheduler, "bad").put(1, 99).end(), Request(scheduler, "good").put(3).end()
        assert await good.rest() == [6]
        with pytest.raises(BadRequest, match="99"):
            await bad.rest()
        assert is_idle(scheduler)
        await scheduler.close()

    run(test)


def test_results_leave_in_the_order_of_their_items() -> None:
    async def test() -> None:
        scheduler, stage = batch(0, workers=2, max_batch=1)
        request = Request(scheduler).put(0, 1, 2).end()
        await stage.gates[0].reached()
        await until(lambda: scheduler.stats().steps_total == 2)
        assert not request.output.items
        stage.gates[0].open()
        assert await request.rest() == [0, 2, 4]
        await scheduler.close()

    run(test)


def test_a_batch_waits_until_it_is_full() -> None:
    async def test() -> None:
        scheduler, stage = batch(max_batch=2, max_wait_ms=10_000)
        first = Request(scheduler, "first").put(1).end()
        await quiet(scheduler)
        assert stage.batches == []
        assert scheduler.stats().queued == 1
        assert await Request(scheduler, "second").put(2).end().rest() == [4]
        assert await first.rest() == [2]
        assert stage.batches == [[1, 2]]
        assert scheduler._timer is None
        await scheduler.close()

    run(test)


def test_a_batch_that_does_not_fill_starts_when_its_oldest_item_has_waited() -> None:
    async def test() -> None:
        scheduler, stage = batch(max_batch=8, max_wait_ms=30)
        loop = asyncio.get_running_loop()
        start = loop.time()
        first = Request(scheduler, "first").put(1).end()
        await turns()
        second = Request(scheduler, "second").put(2).end()
        assert await first.rest() == [2]
        assert loop.time() - start >= 0.029
        assert await second.rest() == [4]
        assert stage.batches == [[1, 2]]
        await scheduler.close()

    run(test)


def test_what_waited_for_a_worker_does_not_wait_again() -> None:
    async def test() -> None:
        scheduler, stage = batch(0, max_batch=2, max_wait_ms=10_000)
        blocker = Request(scheduler, "blocker").put(0, 1).end()
        await stage.gates[0].reached()
        late = Request(scheduler, "late").put(2).end()
        await turns()
        (job,) = scheduler._waiting
        job.since -= 10  # its time is over while the only worker is busy
        stage.gates[0].open()
        assert await blocker.rest() == [0, 2]
        assert await late.rest() == [4]
        assert scheduler._timer is None
        await scheduler.close()

    run(test)


def test_cancel_of_all_that_waits_stops_the_timer_and_empties_the_line() -> None:
    async def test() -> None:
        scheduler, stage = batch(max_batch=8, max_wait_ms=10_000)
        requests = [Request(scheduler, f"r{n}").put(n) for n in range(3)]
        await turns()
        assert scheduler._timer is not None
        requests[0].cancel()
        assert scheduler.stats().queued == 2
        for request in requests:
            request.cancel()
        assert scheduler._timer is None
        assert is_idle(scheduler)
        assert await Request(scheduler, "next", capacity=20).put(*range(8)).end().rest() == [2 * n for n in range(8)]
        assert stage.batches == [list(range(8))]
        await scheduler.close()

    run(test)


def test_close_with_items_that_wait() -> None:
    async def test() -> None:
        with threads_as_before():
            scheduler, stage = batch(max_batch=8, max_wait_ms=10_000)
            Request(scheduler).put(1)
            await turns()
            await scheduler.close()
            assert scheduler._timer is None
            assert stage.batches == []

    run(test)


def test_a_batch_that_fails_is_tried_again_item_by_item() -> None:
    async def test() -> None:
        scheduler, stage = batch()
        requests = [Request(scheduler, f"r{n}").put(n).end() for n in (12, 13, 14, 15, 16)]
        assert await requests[0].rest() == [24]
        refused, broken, left = [await request.error() for request in requests[1:4]]
        assert isinstance(refused, BadRequest)
        assert refused.param == "input"
        for error in (broken, left):
            assert isinstance(error, StageFailed)
            assert "'toy'" in error.message
        assert await requests[4].rest() == [32]
        assert stage.batches[0] == [12, 13, 14, 15, 16]
        await scheduler.close()

    run(test)


def test_an_error_as_a_result_is_its_items_alone() -> None:
    async def test() -> None:
        scheduler, stage = batch()
        refusal, good = BadRequest("no threes", param="input"), stage.encode
        stage.encode = lambda items: [refusal if i.value == 3 else r for i, r in zip(items, good(items), strict=True)]
        bad, beside = Request(scheduler, "bad").put(3).end(), Request(scheduler, "beside").put(4).end()
        assert await bad.error() is refusal
        assert await beside.rest() == [8]
        assert stage.batches == [[3, 4]]
        await scheduler.close()

    run(test)


@pytest.mark.parametrize("result", [lambda items: [], lambda items: None, lambda items: ["text"] * len(items)])
def test_results_of_a_wrong_shape_are_errors(result: Any) -> None:
    async def test() -> None:
        scheduler, stage = batch()
        stage.encode = result
        requests = [Request(scheduler, f"r{n}").put(n).end() for n in range(2)]
        for request in requests:
            assert isinstance(await request.error(), StageFailed)
        assert is_idle(scheduler)
        await scheduler.close()

    run(test)


def test_it_takes_no_more_than_the_consumer_has_room_for() -> None:
    async def test() -> None:
        scheduler, stage = batch(max_batch=4)
        slow = Request(scheduler, "slow", capacity=3).put(*range(10)).end()
        await quiet(scheduler)
        assert stage.batches == [[0, 1, 2]]
        assert await Request(scheduler, "other").put(50).end().rest() == [100]
        assert (await slow.take()).value == 0
        await quiet(scheduler)
        assert stage.batches[-1] == [3]
        assert await slow.rest() == [2 * n for n in range(1, 10)]
        await scheduler.close()

    run(test)


def test_cancel_while_encoding_drops_the_result() -> None:
    async def test() -> None:
        scheduler, stage = batch(1, max_batch=2)
        doomed, other = Request(scheduler, "doomed").put(1, 3), Request(scheduler, "other").put(2).end()
        await stage.gates[1].reached()
        doomed.cancel()
        stage.gates[1].open()
        assert await other.rest() == [4]
        await quiet(scheduler)
        assert stage.batches == [[1, 2]]
        assert not doomed.output.items
        assert is_idle(scheduler)
        await scheduler.close()

    run(test)


def test_an_error_from_upstream_passes_at_once() -> None:
    async def test() -> None:
        scheduler, stage = batch(1)
        request = Request(scheduler).put(1)
        await stage.gates[1].reached()
        request.source.fail(BadRequest("upstream"))
        assert (await request.error()).message == "upstream"
        stage.gates[1].open()
        await scheduler.close()

    run(test)
