"""The continuous scheduler on a deterministic engine with a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, ClassVar

import numpy as np
import pytest
import toy_engine

from omni import AR, AROptions, BadRequest, Message, OmniError, Recipe, Speech, StageContext, StageFailed, StageSpec
from omni.engines.base import Engine, Prompt, SamplingParams, StepOutput
from omni.schedulers.continuous import ContinuousScheduler
from omni.schedulers.worker import Mailbox
from omni.transports.inproc import Edge


class Text(Message):
    text: str
    seed: int | None = None


class Letter(Message):
    code: int
    finish_reason: str | None = None


class Spell(AR[Text, Letter]):
    """One letter per step; the last item carries the finish reason alone."""

    def model(self) -> Any:
        return toy_engine.ToyModel()

    def prompt(self, item: Text) -> tuple[Prompt, SamplingParams]:
        if "!" in item.text:
            raise BadRequest("no shouting", param="input")
        tokens = np.frombuffer(item.text.encode(), np.uint8).astype(np.int64)
        temperature = 0.0 if item.seed is None else 1.0
        return Prompt(tokens=tokens), SamplingParams(max_new_tokens=200, temperature=temperature, seed=item.seed)

    def output(self, item: Text, step: StepOutput) -> Iterable[Letter]:
        if step.codes is not None:
            yield Letter(code=int(step.codes[0]))
        if step.finish_reason is not None:
            yield Letter(code=-1, finish_reason=step.finish_reason)


class Turns:
    """An item that is spoken word by word, with how many letters were said when each turn began."""

    def __init__(self, item: Text) -> None:
        self.words = item.text.split()
        self.said = 0
        self.began: list[int] = []


class Talk(AR[Text, Letter]):
    """One generation per word, each after the one before."""

    states: ClassVar[list[Turns]] = []

    def model(self) -> Any:
        return toy_engine.ToyModel()

    def open(self, item: Text) -> Turns:
        self.states.append(Turns(item))
        return self.states[-1]

    def prompt(self, state: Turns) -> tuple[Prompt, SamplingParams]:
        state.began.append(state.said)
        tokens = np.frombuffer(state.words.pop(0).encode(), np.uint8).astype(np.int64)
        return Prompt(tokens=tokens), SamplingParams(max_new_tokens=200, temperature=0.0)

    def output(self, state: Turns, step: StepOutput) -> Iterable[Letter]:
        if step.codes is not None:
            state.said += 1
            yield Letter(code=int(step.codes[0]))

    def follows(self, state: Turns) -> bool:
        return bool(state.words)


RECIPE = Recipe(
    name="spell",
    summary="-",
    license="-",
    task=Speech(sample_rate=8000),
    stages=(StageSpec("ar", "toy_engine:ToyModel"),),
)


class Bench:
    """A scheduler with its engine, and requests to put through it."""

    def __init__(
        self,
        engine: Any = None,
        parallel_items: int = 1,
        cls: type[AR[Text, Letter]] = Spell,
        ahead: int = 32,
        **engine_options: Any,
    ) -> None:
        stage: Any = cls(AROptions(parallel_items=parallel_items, ahead=ahead), StageContext(RECIPE, "ar"))
        self.engine = engine or toy_engine.create(stage.model(), engine_options)
        assert isinstance(self.engine, Engine)
        self.engine.start()
        self.scheduler = ContinuousScheduler(stage, self.engine, Mailbox(asyncio.get_running_loop()))

    def open(self, name: str, *items: Text, capacity: int = 16) -> Output:
        source, result = Edge(max(16, len(items))), Edge(capacity)
        output = Output(result)
        self.scheduler.open(name, {"request": source}, result)
        for item in items:
            source.put(item)
        source.end(len(items))
        return output

    async def idle(self) -> None:
        """Until the engine and the scheduler hold nothing."""
        stats = self.scheduler.stats
        while (s := stats()).streams or s.queued or s.running or self.engine.stats().kv_tokens_used:
            await asyncio.sleep(0.001)

    async def __aenter__(self) -> Bench:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.scheduler.close()


class Output:
    """A consumer that reads when it is told to."""

    def __init__(self, edge: Edge) -> None:
        self.edge = edge
        self._news = asyncio.Event()
        edge.on_item = self._news.set

    async def take(self) -> Letter | None:
        while not self.edge.items:
            if self.edge.error is not None:
                raise self.edge.error
            if self.edge.ended:
                return None
            self._news.clear()
            await self._news.wait()
        return self.edge.take()

    async def rest(self) -> list[int]:
        codes = []
        while (letter := await self.take()) is not None:
            codes.append(letter.code)
        return codes


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await test()

    asyncio.run(bounded())


def expected(text: str) -> list[int]:
    return [*text.encode(), -1]


async def solo(items: Sequence[Text]) -> list[int]:
    async with Bench() as bench:
        return await bench.open("solo", *items).rest()


def test_many_concurrent_requests_equal_solo_ones() -> None:
    requests = [[Text(text=f"request number {i} " * (1 + i % 5), seed=i)] for i in range(12)]

    async def test() -> None:
        alone = [await solo(items) for items in requests]
        assert len({tuple(codes) for codes in alone}) == len(requests)
        async with Bench(max_running=5) as bench:
            outputs = [bench.open(f"r{i}", *items) for i, items in enumerate(requests)]
            assert await asyncio.gather(*(output.rest() for output in outputs)) == alone
            await bench.idle()
            assert bench.engine.stats().generated_tokens_total == sum(len(codes) - 1 for codes in alone)

    run(test)


def test_the_seed_repeats_and_matters() -> None:
    async def test() -> None:
        first, again, other = [await solo([Text(text="the same text", seed=seed)]) for seed in (1, 1, 2)]
        assert first == again != other

    run(test)


def test_a_full_sink_pauses_only_its_own_request() -> None:
    async def test() -> None:
        async with Bench() as bench:
            slow = bench.open("slow", Text(text="s" * 150), capacity=4)
            fast = bench.open("fast", Text(text="f" * 150))
            assert await fast.rest() == expected("f" * 150)
            # Both started together, so by now the slow one has had every chance to run ahead.
            assert len(slow.edge.items) == 4
            while bench.engine.stats().paused != 1:
                await asyncio.sleep(0.001)
            assert bench.engine.stats().generated_tokens_total < 150 + 60
            assert bench.scheduler.stats().queued >= 1
            assert await slow.rest() == expected("s" * 150)
            await bench.idle()

    run(test)


def test_cancel_aborts_and_frees() -> None:
    async def test() -> None:
        async with Bench(max_running=2) as bench:
            outputs = {name: bench.open(name, Text(text=name * 150), capacity=2) for name in "abcd"}
            for name in "ab":
                await outputs[name].take()
            assert bench.engine.stats().kv_tokens_used == 2 * 350
            assert bench.engine.stats().waiting == 2
            for name in "abc":
                bench.scheduler.cancel(name)
            assert await outputs["d"].rest() == expected("d" * 150)
            await bench.idle()
            assert bench.engine.stats().waiting == 0

    run(test)


def test_cancel_between_the_prompt_and_the_engine_leaves_nothing_behind() -> None:
    """The worker has submitted, the loop has not heard of the handle yet."""

    async def test() -> None:
        async with Bench(max_running=1) as bench:
            blocker = bench.open("blocker", Text(text="b" * 100), capacity=1)
            await blocker.take()
            bench.open("late", Text(text="l" * 100))
            while bench.engine.stats().waiting == 0:
                threading.Event().wait(0.001)  # the loop must not run
            bench.scheduler.cancel("late")
            assert await blocker.rest() == expected("b" * 100)[1:]
            await bench.idle()

    run(test)


class Fragile(toy_engine.ToyModel):
    """Fails on the letter x, whatever else is in the batch."""

    def forward(self, rows: Sequence[Any]) -> list[int | None]:
        if any(row.step < len(row.prompt.tokens) and row.prompt.tokens[row.step] == ord("x") for row in rows):
            raise RuntimeError("x is too hard")
        return super().forward(rows)


def test_an_engine_error_fails_only_the_request_concerned() -> None:
    async def test() -> None:
        async with Bench(toy_engine.ToyEngine(Fragile(), {})) as bench:
            good = [bench.open(f"good{i}", Text(text="plain words " * 5)) for i in range(4)]
            bad = bench.open("bad", Text(text="some words, then x and more"))
            with pytest.raises(StageFailed, match="x is too hard"):
                await bad.rest()
            for output in good:
                assert await output.rest() == expected("plain words " * 5)
            await bench.idle()

    run(test)


def test_a_prompt_that_is_refused_keeps_its_type_and_its_field() -> None:
    async def test() -> None:
        async with Bench(kv_tokens=500) as bench:
            for text, match in (("hey!", "no shouting"), ("long" * 100, "limit is 500")):
                with pytest.raises(BadRequest, match=match) as caught:
                    await bench.open("bad", Text(text="fine"), Text(text=text)).rest()
                assert isinstance(caught.value, OmniError)
                await bench.idle()
            assert await bench.open("good", Text(text="fine")).rest() == expected("fine")

    run(test)


@pytest.mark.parametrize("parallel", [1, 3])
def test_items_leave_in_order_however_many_are_generated_at_once(parallel: int) -> None:
    lengths = (90, 3, 1, 40, 2)
    texts = ["abcde"[i] * length for i, length in enumerate(lengths)]

    async def test() -> None:
        async with Bench(parallel_items=parallel) as bench:
            together: list[int] = []
            all_in = threading.Barrier(2)

            def watch(rows: Sequence[Any]) -> None:
                if not together:
                    all_in.wait(10)
                together.append(len(bench.engine._running) + len(bench.engine._waiting))

            bench.engine.on_step = watch
            output = bench.open("r", *(Text(text=text) for text in texts), capacity=2)
            while len(bench.engine._running) + len(bench.engine._waiting) < parallel:
                await asyncio.sleep(0.001)
            all_in.wait(10)
            assert await output.rest() == [code for text in texts for code in expected(text)]
            await bench.idle()
            assert max(together) == parallel

    run(test)


def test_items_go_ahead_of_a_slow_reader_as_far_as_the_stage_lets_them() -> None:
    texts = ["a" * 60, "b" * 60]

    async def test() -> None:
        # Of the first item one letter has left.
        for ahead, made in ((10, 2 * 10 + 1), (1000, 2 * 60)):
            async with Bench(parallel_items=2, ahead=ahead) as bench:
                output = bench.open("r", *(Text(text=text) for text in texts), capacity=1)
                while not (stats := bench.engine.stats()).generated_tokens_total or stats.running or stats.waiting:
                    await asyncio.sleep(0.001)
                assert bench.engine.stats().generated_tokens_total == made
                assert await output.rest() == [code for text in texts for code in expected(text)]

    run(test)


@pytest.mark.parametrize("parallel", [1, 2])
def test_a_generation_that_another_follows_is_over_before_it_begins(parallel: int) -> None:
    texts = ("one long first word", "and then", "more")

    async def test() -> None:
        Talk.states.clear()
        async with Bench(parallel_items=parallel, cls=Talk) as bench:
            output = bench.open("r", *(Text(text=text) for text in texts), capacity=3)
            assert bytes(await output.rest()) == "".join(texts).replace(" ", "").encode()
            await bench.idle()
        assert sorted(state.began for state in Talk.states) == [[0], [0, 3], [0, 3, 7, 12]]

    run(test)


def test_cancel_between_two_turns_ends_the_request() -> None:
    async def test() -> None:
        async with Bench(cls=Talk) as bench:
            output = bench.open("r", Text(text="one two three"), capacity=2)
            for _ in "onet":
                await output.take()
            bench.scheduler.cancel("r")
            await bench.idle()
            assert bench.engine.stats().waiting == 0
            assert await bench.open("s", Text(text="one two")).rest() == [*b"onetwo"]

    run(test)


def test_close_ends_the_engine_thread_with_requests_under_way() -> None:
    async def test() -> None:
        bench = Bench()
        output = bench.open("r", Text(text="r" * 150), capacity=1)
        await output.take()
        await bench.scheduler.close()
        assert not bench.engine._thread.is_alive()

    run(test)
