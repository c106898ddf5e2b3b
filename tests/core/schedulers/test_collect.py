"""The collect scheduler: several sources, room, errors, no state left."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from harness import Item, Request, is_idle, make, run, turns

from omni import Aggregator, BadRequest, StageFailed
from omni.schedulers.collect import CollectScheduler
from omni.transports.inproc import Edge


class Sums(Aggregator[Item, Item, list[int]]):
    """Every item as it is, two for one of value 2; the sum at the end. Certain values break it at certain places."""

    def open(self) -> list[int]:
        return []

    def add(self, state: list[int], item: Item, source: str) -> Iterable[Item]:
        if item.value == 13:
            raise BadRequest("13", param="input")
        state.append(item.value)
        yield Item(value=item.value, text=source)
        if item.value == 2:
            yield Item(value=2, text=source)

    def result(self, state: list[int]) -> Iterable[Item]:
        if 99 in state:
            raise KeyError("99")
        return [Item(value=sum(state), text="sum")]


def collect(**overrides: Any) -> CollectScheduler:
    stage = make(Sums)
    for name, value in overrides.items():
        setattr(stage, name, value)
    return CollectScheduler(stage)


def test_items_pass_as_they_come_and_the_result_at_the_end() -> None:
    async def test() -> None:
        scheduler = collect()
        request = Request(scheduler).put(1, 2)
        assert [(await request.take()).value for _ in range(3)] == [1, 2, 2]
        request.put(3).end()
        assert await request.rest() == [3, 6]
        assert is_idle(scheduler)
        assert scheduler.stats().items_total == 3

    run(test)


def test_an_empty_stream_still_has_a_result() -> None:
    async def test() -> None:
        assert await Request(collect()).end().rest() == [0]

    run(test)


def test_several_sources_are_told_apart_and_all_must_end() -> None:
    async def test() -> None:
        scheduler = collect()
        sources, output = {"a": Edge(4), "b": Edge(4)}, Edge(16)
        scheduler.open("r", sources, output)
        sources["b"].put(Item(value=10))
        sources["a"].put(Item(value=1))
        sources["a"].end(1)
        assert [(item.text, item.value) for item in output.items] == [("b", 10), ("a", 1)]
        assert not output.ended
        sources["b"].end(1)
        assert (output.items[-1].text, output.items[-1].value) == ("sum", 11)
        assert output.ended

    run(test)


def test_it_takes_no_more_than_there_is_room_for() -> None:
    async def test() -> None:
        scheduler = collect()
        request = Request(scheduler, capacity=2).put(1, 2, 3, 4).end()
        # One over: an item that gives two is not cut in half.
        assert [item.value for item in request.output.items] == [1, 2, 2]
        assert scheduler.stats().queued == 2
        request.output.take()
        await turns()
        assert [item.value for item in request.output.items] == [2, 2]
        assert await request.rest() == [2, 2, 3, 4, 10]

    run(test)


@pytest.mark.parametrize(("value", "kind"), [(13, BadRequest), (99, StageFailed)])
def test_errors_in_add_and_in_result(value: int, kind: type[Exception]) -> None:
    async def test() -> None:
        scheduler = collect()
        assert isinstance(await Request(scheduler).put(1, value).end().error(), kind)
        assert is_idle(scheduler)

    run(test)


def test_an_error_in_open_is_the_requests() -> None:
    def broken() -> Any:
        raise RuntimeError("cannot open")

    async def test() -> None:
        scheduler = collect(open=broken)
        error = await Request(scheduler).put(1).end().error()
        assert isinstance(error, StageFailed)
        assert "cannot open" in error.message
        assert is_idle(scheduler)

    run(test)


@pytest.mark.parametrize("outputs", [["text"], None])
def test_outputs_of_a_wrong_type_are_errors(outputs: Any) -> None:
    async def test() -> None:
        scheduler = collect(add=lambda state, item, source: outputs)
        assert isinstance(await Request(scheduler).put(1).end().error(), StageFailed)
        assert is_idle(scheduler)

    run(test)


def test_an_error_from_one_source_ends_it() -> None:
    async def test() -> None:
        scheduler = collect()
        sources, output = {"a": Edge(4), "b": Edge(4)}, Edge(16)
        scheduler.open("r", sources, output)
        sources["a"].put(Item(value=1))
        sources["b"].fail(BadRequest("b broke"))
        assert output.error is not None
        assert output.error.message == "b broke"
        assert sources["a"].closed
        assert is_idle(scheduler)

    run(test)


def test_cancel_forgets() -> None:
    async def test() -> None:
        scheduler = collect()
        request = Request(scheduler, capacity=1).put(1, 3, 5)
        request.cancel()
        request.cancel()
        assert is_idle(scheduler)
        request.put(7).end()
        assert not request.output.ended
        await scheduler.close()

    run(test)
