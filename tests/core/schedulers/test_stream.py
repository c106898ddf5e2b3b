"""The stream scheduler: chunk policy, batches across streams, states, room, cancelling, errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from harness import Gate, Item, Request, is_idle, mailbox, make, quiet, run, threads_as_before, turns

from omni import BadRequest, DecodeJob, Decoder, StageFailed
from omni.schedulers import worker
from omni.schedulers.stream import StreamScheduler


@pytest.fixture(autouse=True, params=[0.0, 60.0], ids=["step by step", "long turns"])
def turn(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> float:
    """How long a job goes on with the next chunks: what comes out must not depend on it."""
    monkeypatch.setattr(worker, "TURN", request.param)
    return float(request.param)


class State:
    def __init__(self, first: int) -> None:
        self.first = first
        self.seen: list[int] = []
        self.lasts = 0


class Echo(Decoder[Item, Item]):
    """Gives every item back, after the sum of the stream at its end. Keeps a record of everything."""

    def load(self) -> None:
        self.batches: list[list[tuple[int, list[int], bool]]] = []
        self.states: list[State] = []
        self.discarded: list[State] = []
        self.gate: Gate | None = None

    def open(self, first: Item) -> State:
        if first.value == 666:
            raise BadRequest("no such first item", param="input")
        self.states.append(State(first.value))
        return self.states[-1]

    def decode(self, batch: Sequence[DecodeJob]) -> Sequence[Sequence[Item]]:
        self.batches.append([(job.state.first, [item.value for item in job.items], job.last) for job in batch])
        if self.gate is not None:
            self.gate.passed()
        return [self._one(job) for job in batch]

    def _one(self, job: DecodeJob) -> list[Item]:
        state = job.state
        assert state not in self.discarded
        assert state.lasts == 0, "nothing comes after the last call"
        state.lasts += job.last
        state.seen += [item.value for item in job.items]
        if 13 in state.seen:
            raise RuntimeError("13")
        tail = [Item(value=sum(state.seen))] if job.last else []
        return [*job.items, *tail]

    def discard(self, state: State) -> None:
        assert state not in self.discarded
        self.discarded.append(state)


def stream(**options: Any) -> tuple[StreamScheduler, Any]:
    stage = make(Echo, **options)
    stage.load()
    return StreamScheduler(stage, mailbox()), stage


@pytest.mark.parametrize(
    ("first", "growth", "most", "count", "sizes"),
    [
        (1, 1.0, 1, 4, [1, 1, 1, 1]),
        (2, 2.0, 8, 30, [2, 4, 8, 8, 8]),
        (2, 2.0, 8, 14, [2, 4, 8]),
        (1, 1.5, 4, 14, [1, 1, 2, 3, 4, 3]),
        (4, 1.0, 1, 9, [4, 4, 1]),
        (8, 3.0, 100, 3, [3]),
        (1, 10.0, 100, 120, [1, 10, 100, 9]),
    ],
)
def test_the_chunk_policy(first: int, growth: float, most: int, count: int, sizes: list[int]) -> None:
    async def test() -> None:
        scheduler, stage = stream(first_chunk=first, chunk_growth=growth, max_chunk=most)
        numbers = list(range(1000, 1000 + count))
        assert scheduler.input_capacity == max(first, most)
        assert await Request(scheduler, capacity=1000).put(*numbers).end().rest() == [*numbers, sum(numbers)]
        steps = [step for batch in stage.batches for step in batch]
        assert [len(items) for _, items, _ in steps] == sizes
        assert [last for _, _, last in steps] == [False] * (len(sizes) - 1) + [True]
        await scheduler.close()

    run(test)


def test_an_end_that_comes_late_is_told_with_an_empty_step() -> None:
    async def test() -> None:
        scheduler, stage = stream()
        request = Request(scheduler).put(5)
        assert (await request.take()).value == 5
        request.end()
        assert await request.rest() == [5]
        assert stage.batches == [[(5, [5], False)], [(5, [], True)]]
        await scheduler.close()

    run(test)


def test_a_chunk_that_is_not_full_waits_for_more() -> None:
    async def test() -> None:
        scheduler, stage = stream(first_chunk=3, max_chunk=3)
        request = Request(scheduler).put(1, 2)
        await quiet(scheduler)
        assert stage.batches == []
        request.put(3)
        assert (await request.take()).value == 1
        assert stage.batches == [[(1, [1, 2, 3], False)]]
        await scheduler.close()

    run(test)


def test_a_stream_without_items_ends_without_being_opened() -> None:
    async def test() -> None:
        scheduler, stage = stream()
        assert await Request(scheduler).end().rest() == []
        await scheduler.close()
        assert stage.states == []
        assert stage.discarded == []

    run(test)


def test_streams_that_are_ready_together_share_a_batch_up_to_its_size(turn: float) -> None:
    async def test() -> None:
        scheduler, stage = stream(max_batch=4)
        requests = [Request(scheduler, f"r{n}").put(n, n + 100).end() for n in range(6)]
        for n, request in enumerate(requests):
            assert await request.rest() == [n, n + 100, 2 * n + 100]
        firsts = [[first for first, _, _ in batch] for batch in stage.batches]
        assert firsts[0] == [0, 1, 2, 3]
        assert sum(map(len, firsts)) == 12
        assert len(firsts) == (4 if turn else 3)
        await quiet(scheduler)
        assert len(stage.discarded) == 6
        assert is_idle(scheduler)
        await scheduler.close()

    run(test)


def test_a_stream_is_in_one_batch_at_a_time_however_many_workers() -> None:
    async def test() -> None:
        scheduler, stage = stream(workers=3, max_batch=2)
        stage.gate = Gate()
        request = Request(scheduler).put(1, 2, 3).end()
        await stage.gate.reached()
        await turns()
        assert stage.batches == [[(1, [1], False)]]
        assert scheduler.stats().running == 1
        stage.gate.open()
        assert await request.rest() == [1, 2, 3, 6]
        await scheduler.close()

    run(test)


def test_a_full_consumer_leaves_only_its_own_stream_out() -> None:
    async def test() -> None:
        scheduler, _ = stream(workers=1)
        slow = Request(scheduler, "slow", capacity=2).put(*range(10)).end()
        await quiet(scheduler)
        assert len(slow.output.items) == 2
        assert await Request(scheduler, "fast", capacity=1).put(*range(100, 110)).end().rest() == [
            *range(100, 110),
            sum(range(100, 110)),
        ]
        assert len(slow.output.items) == 2
        assert await slow.rest() == [*range(10), 45]
        await scheduler.close()

    run(test)


def test_a_job_makes_no_more_than_there_was_room_for_and_leaves_the_rest_on_the_edge() -> None:
    async def test() -> None:
        scheduler, stage = stream()
        request = Request(scheduler, capacity=3).put(*range(10)).end()
        await quiet(scheduler)
        assert [len(batch) for batch in stage.batches] == [1, 1, 1]
        assert len(request.source.items) == 7
        assert scheduler.stats().items_total == 3
        assert await request.rest() == [*range(10), 45]
        await scheduler.close()

    run(test)


def test_a_job_stops_when_its_steps_have_filled_the_room() -> None:
    async def test() -> None:
        scheduler, stage = stream()
        stage._one = lambda job: [Item(value=item.value) for item in job.items for _ in range(2)]
        request = Request(scheduler, capacity=3).put(*range(10)).end()
        await quiet(scheduler)
        # The second step overshoots by one; a third would have nothing to do with the room.
        assert len(stage.batches) == 2
        assert len(request.output.items) == 4
        assert await request.rest() == [n for n in range(10) for _ in range(2)]
        await scheduler.close()

    run(test)


def test_outputs_leave_while_the_next_step_of_the_same_job_is_under_way(turn: float) -> None:
    async def test() -> None:
        scheduler, stage = stream()
        gate = Gate()
        one, calls = stage._one, []

        def held(job: DecodeJob) -> list[Item]:
            calls.append(len(job.items))
            if len(calls) == 2:
                gate.passed()
            return one(job)

        stage._one = held
        request = Request(scheduler).put(1, 2).end()
        await gate.reached()
        assert (await request.take()).value == 1
        assert scheduler._workers.pending == 1
        # Only what was begun for a job's first step has left the edge.
        assert len(request.source.items) == (1 if turn else 0)
        gate.open()
        assert await request.rest() == [2, 3]
        assert len(request.source.items) == 0
        await scheduler.close()

    run(test)


def test_an_error_in_a_later_step_of_a_job_ends_the_stream_after_what_was_made() -> None:
    async def test() -> None:
        scheduler, stage = stream()
        request = Request(scheduler).put(1, 2, 13, 4).end()
        assert isinstance(await request.error(), StageFailed)
        assert len(stage.batches) == 3
        assert scheduler.stats().streams == 0
        await quiet(scheduler)
        assert len(stage.discarded) == 1
        await scheduler.close()

    run(test)


def test_cancel_between_the_steps_of_a_job_stops_it() -> None:
    async def test() -> None:
        scheduler, stage = stream()
        stage.gate = Gate()
        request = Request(scheduler).put(*range(10)).end()
        await stage.gate.reached()
        request.cancel()
        stage.gate.open()
        await quiet(scheduler)
        assert len(stage.batches) == 1
        assert len(stage.discarded) == 1
        assert is_idle(scheduler)
        await scheduler.close()

    run(test)


def test_an_error_in_open_fails_only_its_own_stream() -> None:
    async def test() -> None:
        scheduler, stage = stream()
        good, bad = Request(scheduler, "good").put(1).end(), Request(scheduler, "bad").put(666).end()
        error = await bad.error()
        assert isinstance(error, BadRequest)
        assert error.param == "input"
        assert await good.rest() == [1, 1]
        await scheduler.close()
        assert len(stage.discarded) == len(stage.states) == 1

    run(test)


def test_an_error_in_decode_fails_the_streams_of_the_batch_and_no_later_one() -> None:
    async def test() -> None:
        scheduler, stage = stream()
        bad, beside = Request(scheduler, "bad").put(13).end(), Request(scheduler, "beside").put(1).end()
        for request in (bad, beside):
            error = await request.error()
            assert isinstance(error, StageFailed)
            assert "'toy'" in error.message
        assert await Request(scheduler, "later").put(2).end().rest() == [2, 2]
        await scheduler.close()
        assert len(stage.discarded) == len(stage.states) == 3

    run(test)


def test_an_error_as_a_result_ends_its_stream_alone() -> None:
    async def test() -> None:
        scheduler, stage = stream()
        good = stage.decode
        refusal = BadRequest("no thirteen", param="input")
        stage.decode = lambda batch: [refusal if job.state.first == 13 else good([job])[0] for job in batch]
        bad, beside = Request(scheduler, "bad").put(13).end(), Request(scheduler, "beside").put(1).end()
        assert await bad.error() is refusal
        assert await beside.rest() == [1, 1]
        await scheduler.close()
        assert len(stage.discarded) == len(stage.states) == 2

    run(test)


@pytest.mark.parametrize(
    "result", [lambda batch: [], lambda batch: None, lambda batch: [None] * len(batch), lambda batch: ["text"]]
)
def test_results_of_a_wrong_shape_are_errors(result: Any) -> None:
    async def test() -> None:
        scheduler, stage = stream()
        stage.decode = result
        assert isinstance(await Request(scheduler).put(1).end().error(), StageFailed)
        await quiet(scheduler)
        assert is_idle(scheduler)
        await scheduler.close()

    run(test)


def test_cancel_while_decoding_discards_the_state_when_the_batch_is_back() -> None:
    async def test() -> None:
        scheduler, stage = stream()
        stage.gate = Gate()
        doomed, other = Request(scheduler, "doomed").put(1, 2, 3), Request(scheduler, "other").put(9).end()
        await stage.gate.reached()
        doomed.cancel()
        assert stage.discarded == []
        stage.gate.open()
        assert await other.rest() == [9, 9]
        await quiet(scheduler)
        assert {state.first for state in stage.discarded} == {1, 9}
        assert not doomed.output.ended
        assert is_idle(scheduler)
        await scheduler.close()

    run(test)


def test_cancel_of_a_stream_that_waits_discards_it_and_cancel_in_the_line_opens_nothing() -> None:
    async def test() -> None:
        scheduler, stage = stream()
        waiting = Request(scheduler, "waiting").put(1)
        await quiet(scheduler)
        waiting.cancel()
        await quiet(scheduler)
        assert [state.first for state in stage.discarded] == [1]
        Request(scheduler, "in line").put(2).cancel()
        await quiet(scheduler)
        assert len(stage.states) == 1
        assert is_idle(scheduler)
        await scheduler.close()

    run(test)


def test_an_error_from_upstream_passes_at_once_and_frees_the_state() -> None:
    async def test() -> None:
        scheduler, stage = stream()
        stage.gate = Gate()
        request = Request(scheduler).put(1)
        await stage.gate.reached()
        request.source.fail(BadRequest("upstream"))
        assert (await request.error()).message == "upstream"
        stage.gate.open()
        await scheduler.close()
        assert len(stage.discarded) == 1

    run(test)


def test_a_discard_that_raises_hurts_nobody() -> None:
    async def test() -> None:
        stage = make(Echo, workers=1)
        stage.load()
        stage.discard = lambda state: 1 / 0
        scheduler = StreamScheduler(stage, mailbox())
        for n in range(3):
            assert await Request(scheduler, f"r{n}").put(n).end().rest() == [n, n]
        await scheduler.close()

    run(test)


def test_close_while_decoding_discards_before_the_stage_closes() -> None:
    async def test() -> None:
        with threads_as_before():
            scheduler, stage = stream()
            stage.gate = Gate()
            left: list[int] = []
            stage.close = lambda: left.append(len(stage.states) - len(stage.discarded))
            Request(scheduler).put(1, 2, 3)
            await stage.gate.reached()
            stage.gate.open()
            await scheduler.close()
            assert left == [0]

    run(test)
