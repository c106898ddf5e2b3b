"""Edges: counting, room, ending, forks and joins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from harness import Item, run, turns

from omni import BadRequest, Joined, StageFailed
from omni.transports.inproc import Edge, Join, Tee, Window


def values(edge: Edge) -> list[int]:
    return [edge.take().value for _ in range(len(edge.items))]


@pytest.mark.parametrize(("sent", "arrived"), [(3, 2), (2, 3), (1, 0)])
def test_a_lost_or_doubled_item_is_an_error(sent: int, arrived: int) -> None:
    edge = Edge(16)
    for i in range(arrived):
        edge.put(Item(value=i))
    edge.end(sent)
    assert isinstance(edge.error, StageFailed)
    assert f"{sent} items were sent" in edge.error.message
    assert f"{arrived} arrived" in edge.error.message
    assert not edge.items


def test_an_error_overtakes_items_and_nothing_comes_after_an_end() -> None:
    edge = Edge(16)
    edge.put(Item(value=1))
    edge.fail(BadRequest("first"))
    edge.fail(BadRequest("second"))
    edge.put(Item(value=2))
    edge.end(5)
    assert edge.error is not None
    assert edge.error.message == "first"
    assert not edge.items

    clean = Edge(16)
    clean.put(Item(value=1))
    clean.end(1)
    clean.fail(BadRequest("late"))
    clean.put(Item(value=2))
    assert clean.error is None
    assert values(clean) == [1]
    assert clean.drained


def test_a_closed_edge_keeps_nothing_and_calls_nobody() -> None:
    async def test() -> None:
        edge, calls = Edge(1), []
        edge.on_item = lambda: calls.append("item")
        edge.on_room(lambda: calls.append("room"))
        edge.put(Item())
        edge.take()
        edge.close()
        edge.put(Item())
        edge.end(7)
        await turns()
        assert calls == ["item"]
        assert edge.queued == 0
        assert edge.error is None

    run(test)


def test_the_producer_hears_of_room_once_the_edge_was_full_and_never_inside_a_take() -> None:
    async def test() -> None:
        edge, wakes = Edge(2), []
        edge.on_room(lambda: wakes.append(edge.room))
        edge.put(Item())
        edge.take()
        await turns()
        assert wakes == [], "it was not full"
        edge.put(Item())
        edge.put(Item())
        edge.take()
        assert wakes == [], "the consumer may be in the middle of something"
        await turns()
        assert wakes == [1]
        edge.put(Item())
        edge.put(Item())
        assert edge.room == 0, "a producer may overshoot"

    run(test)


def test_a_tee_gives_every_item_to_all_and_keeps_pace_with_the_slowest() -> None:
    async def test() -> None:
        fast, slow, wakes = Edge(4), Edge(2), []
        tee = Tee([fast, slow])
        tee.on_room(lambda: wakes.append(tee.room))
        for i in range(2):
            tee.put(Item(value=i))
        assert tee.room == 0
        assert values(fast) == [0, 1]
        await turns()
        assert tee.room == 0
        slow.take()
        await turns()
        assert wakes == [1]
        tee.put(Item(value=2))
        tee.end(3)
        assert values(fast) == [2]
        assert values(slow) == [1, 2]
        assert fast.drained
        assert slow.drained

    run(test)


def test_a_tee_fails_all() -> None:
    edges = [Edge(2), Edge(2)]
    Tee(edges).fail(BadRequest("both"))
    assert [edge.error.message for edge in edges if edge.error] == ["both", "both"]


class Pair:
    """A join of two edges."""

    def __init__(self, capacity: int = 4) -> None:
        self.a, self.b = Edge(capacity), Edge(capacity)
        self.joined = Join({"a": self.a, "b": self.b}, capacity)

    def take(self) -> tuple[int, int]:
        item = self.joined.take()
        assert isinstance(item, Joined)
        return item.parts["a"].value, item.parts["b"].value

    def take_all(self) -> list[tuple[int, int]]:
        return [self.take() for _ in range(len(self.joined.items))]


def feed(edge: Edge, numbers: list[int]) -> Callable[[], None]:
    """A producer that puts whenever there is room."""

    def pump() -> None:
        while numbers and edge.room:
            edge.put(Item(value=numbers.pop(0)))
        if not numbers:
            edge.end(edge.received)

    edge.on_room(pump)
    return pump


@pytest.mark.parametrize("capacity", [1, 2, 5])
def test_a_join_pairs_the_ith_items_whoever_is_ahead(capacity: int) -> None:
    async def test() -> None:
        pair = Pair(capacity)
        feed(pair.a, list(range(50)))()
        await turns()
        assert pair.a.received == capacity, "the one that is ahead is paused"
        feed(pair.b, list(range(50)))()
        got: list[tuple[int, int]] = []
        while not pair.joined.drained:
            await turns(4)
            assert len(pair.joined.items) <= capacity
            got += pair.take_all()
        assert got == [(i, i) for i in range(50)]
        assert pair.joined.error is None

    run(test)


@pytest.mark.parametrize("late", [True, False])
def test_a_join_of_unequal_lengths_is_an_error(late: bool) -> None:
    async def test() -> None:
        pair = Pair()
        pair.a.put(Item(value=0))
        pair.b.put(Item(value=0))
        if late:
            pair.a.end(1)
            assert pair.joined.error is None, "the other may end as well"
            pair.b.put(Item(value=1))
        else:
            pair.b.put(Item(value=1))
            pair.a.end(1)
        assert isinstance(pair.joined.error, StageFailed)
        assert "'a'" in pair.joined.error.message

    run(test)


def test_a_join_of_equal_lengths_ends() -> None:
    async def test() -> None:
        pair = Pair()
        for edge in (pair.a, pair.b):
            edge.put(Item(value=3))
            edge.end(1)
        assert pair.take_all() == [(3, 3)]
        assert pair.joined.drained

    run(test)


def test_a_join_passes_an_error_on_and_closes_its_sources() -> None:
    async def test() -> None:
        pair = Pair()
        pair.a.put(Item())
        assert pair.joined.queued == 1
        pair.b.fail(BadRequest("b broke"))
        assert pair.joined.error is not None
        assert pair.joined.error.message == "b broke"
        other: Any = Pair()
        other.a.put(Item())
        other.joined.close()
        assert other.joined.queued == 0
        assert other.a.closed
        assert other.b.closed

    run(test)


def test_a_window_has_room_for_what_a_later_stage_is_not_done_with() -> None:
    async def test() -> None:
        near, goal, calls = Edge(2), Edge(9), []
        window = Window(near, goal, 3)
        window.on_room(lambda: calls.append(window.room))
        assert window.room == 2, "the next edge has no more"
        for i in range(2):
            window.put(Item(value=i))
        assert (values(near), window.room) == ([0, 1], 1)
        window.put(Item(value=2))
        assert (values(near), window.room) == ([2], 0)
        await turns(3)
        calls.clear()
        goal.settle()
        assert not calls, "its producer is woken on the loop's next turn"
        await turns(3)
        assert calls == [1]
        goal.settle()
        await turns(3)
        assert calls == [1], "there was room"
        window.end(3)
        assert near.drained
        goal.close()
        goal.settle()

    run(test)


def test_a_window_passes_errors_on() -> None:
    near = Edge(2)
    Window(near, Edge(2), 1).fail(BadRequest("no"))
    assert isinstance(near.error, BadRequest)
