"""The way from threads back onto the loop."""

from __future__ import annotations

import asyncio
import logging
import threading
from functools import partial
from typing import Any

import pytest
from harness import Gate, run, stage_threads, threads_as_before, turns, until

from omni import StageFailed
from omni.schedulers.worker import Mailbox, Workers, in_thread


def test_calls_of_many_threads_all_arrive_each_in_its_order() -> None:
    async def test() -> None:
        mail = Mailbox(asyncio.get_running_loop())
        got: dict[int, list[int]] = {n: [] for n in range(8)}

        def send(n: int) -> None:
            for i in range(2000):
                mail.post(got[n].append, i)

        threads = [threading.Thread(target=send, args=(n,)) for n in got]
        for thread in threads:
            thread.start()
        while any(len(numbers) < 2000 for numbers in got.values()):
            await asyncio.sleep(0)
        assert all(numbers == list(range(2000)) for numbers in got.values())

    run(test)


def test_a_call_that_raises_is_reported_and_holds_up_no_other() -> None:
    async def test() -> None:
        reports: list[Any] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda loop, context: reports.append(context["exception"]))
        mail = Mailbox(loop)
        got: list[int] = []
        mail.post(got.append, 1)
        mail.post(got.index, 99)
        mail.post(got.append, 2)
        await turns()
        assert got == [1, 2]
        assert [type(error) for error in reports] == [ValueError]

    run(test)


def test_posts_that_never_cease_do_not_starve_the_loop() -> None:
    async def test() -> None:
        mail = Mailbox(asyncio.get_running_loop())
        count = 0

        def again() -> None:
            nonlocal count
            count += 1
            mail.post(again)

        again()
        await turns(10)
        assert count <= 20

    run(test)


def test_a_post_after_the_loop_has_closed_is_no_error() -> None:
    async def make() -> Mailbox:
        return Mailbox(asyncio.get_running_loop())

    asyncio.run(make()).post(print, "nobody hears this")


def test_results_and_errors_come_back_on_the_loop() -> None:
    async def test() -> None:
        workers = Workers("toy", 2, Mailbox(asyncio.get_running_loop()))
        back: list[Any] = []
        thread = threading.current_thread()

        def done(result: Any) -> None:
            assert threading.current_thread() is thread
            back.append(result)

        workers.submit(partial(pow, 2, 10), done)
        workers.submit(partial(pow, 0, -1), done)
        await workers.close()
        assert 1024 in back
        (error,) = [result for result in back if result != 1024]
        assert isinstance(error, StageFailed)
        assert "ZeroDivisionError" in error.message

    run(test)


def test_close_waits_for_what_a_result_sets_off() -> None:
    async def test() -> None:
        with threads_as_before():
            workers = Workers("toy", 1, Mailbox(asyncio.get_running_loop()))
            order: list[str] = []
            gate = Gate()
            workers.submit(
                gate.passed,
                lambda _: workers.submit(partial(order.append, "second"), lambda _: order.append("back")),
            )
            await gate.reached()
            closing = asyncio.create_task(workers.close())
            await turns()
            assert not closing.done()
            gate.open()
            await closing
            assert order == ["second", "back"]

    run(test)


def test_close_leaves_a_stuck_thread_behind_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        workers = Workers("toy", 1, Mailbox(asyncio.get_running_loop()))
        gate = Gate()
        workers.submit(gate.passed, lambda _: None)
        await gate.reached()
        with caplog.at_level(logging.WARNING, "omni.stage"):
            assert not await workers.close(timeout=0.01)
        assert "toy is still busy" in caplog.text
        gate.open()
        for thread in workers._threads:
            await asyncio.to_thread(thread.join, 20)
            assert not thread.is_alive()

    run(test)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_result_that_nobody_waits_for_any_more_is_undone(when: str) -> None:
    async def test() -> None:
        before = stage_threads()
        with threads_as_before():
            gate, undone = Gate(), []
            waiting = asyncio.create_task(in_thread(lambda: gate.passed() or "result", "toy", undone.append))
            await gate.reached()
            if when == "before":
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiting
                gate.open()
            else:
                # Cancelled in the same turn of the loop in which the result arrives.
                gate.open()
                (thread,) = [thread for thread in threading.enumerate() if thread.name == "omni-toy"]
                thread.join()
                await asyncio.sleep(0)
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiting
            await until(lambda: undone == ["result"] and stage_threads() == before)

    run(test)


def test_an_error_of_a_thread_is_raised_where_it_is_awaited() -> None:
    async def test() -> None:
        with threads_as_before(), pytest.raises(ZeroDivisionError):
            await in_thread(lambda: 1 / 0, "toy")

    run(test)
