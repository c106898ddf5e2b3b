"""Submit, abort, death and close in every order, against a process that the test plays. Needs no SGLang."""

from __future__ import annotations

import threading
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from omni.engines.base import ModelShape, ModelSource, Prompt, SamplingParams, StepOutput
from omni.engines.sglang import engine as module
from omni.engines.sglang import wire
from omni.engines.torch import BlockDims, StackDims
from omni.errors import ConfigError, OmniError, StageFailed, Unavailable

PATIENCE = 10.0


class Source(ModelSource, kw_only=True, frozen=True):
    def shape(self) -> ModelShape:
        return ModelShape(0, 64, StackDims(BlockDims(16, 2, 1, 8, 16, 1e-6), 1, 64, 1e4))

    def check(self, prompt: Prompt, params: SamplingParams) -> None:
        return None


class Process:
    """What :class:`SGLangEngine` speaks to: ``say`` puts reports on their way, ``die`` ends it."""

    def __init__(self, device: str) -> None:
        self.pid = 0
        self.leftovers: list[str] = []
        self.orders: SimpleQueue[Any] = SimpleQueue()
        self._reports: SimpleQueue[list[wire.Report] | None] = SimpleQueue()
        self.reaped = 0

    def send(self, order: wire.Order) -> None:
        self.orders.put(order)

    def wake(self) -> None:
        self._reports.put([])

    def say(self, *reports: wire.Report) -> None:
        self._reports.put(list(reports))

    def die(self) -> None:
        self._reports.put(None)

    end = die

    def reports(self) -> list[wire.Report]:
        found = self._reports.get(timeout=PATIENCE)
        if found is None:
            raise EOFError
        return found

    def reap(self) -> str | None:
        self.reaped += 1
        return "ValueError: why"


class Sink:
    def __init__(self) -> None:
        self.steps: list[StepOutput] = []
        self.error: OmniError | None = None
        self.pushed, self.ended = threading.Event(), threading.Event()

    def room(self) -> int:
        return 1

    def push(self, output: StepOutput) -> None:
        self.steps.append(output)
        self.pushed.set()

    def finish(self) -> None:
        self.ended.set()

    def fail(self, error: OmniError) -> None:
        assert not self.ended.is_set()
        self.error = error
        self.ended.set()

    def on_room(self, wake: Any) -> None:
        return None


class Bench:
    """An engine that has started, and its process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *first: wire.Report) -> None:
        self.made: SimpleQueue[Process] = SimpleQueue()

        def make(device: str) -> Process:
            process = Process(device)
            process.say(*first)
            self.made.put(process)
            return process

        monkeypatch.setattr(module, "Process", make)
        self.engine = module.SGLangEngine(Source(device="cpu", dtype="float32"), {})

    def start(self) -> Process:
        self.engine.start()
        self.process = self.made.get(timeout=PATIENCE)
        assert isinstance(self.process.orders.get(timeout=PATIENCE), wire.Start)
        return self.process

    def submit(self) -> tuple[Any, Sink, int]:
        sink = Sink()
        handle = self.engine.submit("r", Prompt(tokens=[1, 2]), SamplingParams(max_new_tokens=4, seed=0), sink)
        order = self.process.orders.get(timeout=PATIENCE)
        assert isinstance(order, wire.Submit)
        return handle, sink, order.number


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    made = Bench(monkeypatch, wire.Leaves(["/nowhere/socket"]), wire.Ready(1000))
    yield made
    made.engine.close()


def step(number: int, reason: str | None = None) -> wire.Columns:
    return wire.Columns(number, [[1, 7]], reason, 0, 0)


def test_a_request_runs_to_its_end_and_is_forgotten(bench) -> None:
    process = bench.start()
    assert process.leftovers == ["/nowhere/socket"]
    assert bench.engine.max_tokens == 64
    _, sink, number = bench.submit()
    process.say(step(number), step(number, "length"), wire.Ended(number))
    assert sink.ended.wait(PATIENCE)
    assert [s.codes.tolist() for s in sink.steps] == [[7], [7]]
    assert sink.steps[-1].finish_reason == "length"
    handle, other, number = bench.submit()
    # Its number is answered only after what was said before it.
    process.say(step(number, "length"))
    assert other.ended.wait(PATIENCE)
    assert list(bench.engine._live) == [handle.number]


def test_all_are_told_of_a_death_and_nobody_enters_after_it(bench) -> None:
    process = bench.start()
    _, begun, number = bench.submit()
    _, waiting, _ = bench.submit()
    process.say(step(number))
    assert begun.pushed.wait(PATIENCE)
    process.die()
    for sink in (begun, waiting):
        assert sink.ended.wait(PATIENCE)
        assert isinstance(sink.error, StageFailed)
        assert sink.error.message == "the SGLang engine has died: ValueError: why"
    assert bench.engine.down == "the SGLang engine has died: ValueError: why"
    with pytest.raises(Unavailable, match="has died"):
        bench.submit()
    assert bench.engine.stats().waiting == 0


def test_one_that_was_aborted_is_told_nothing(bench) -> None:
    process = bench.start()
    handle, gone, number = bench.submit()
    _, stays, _ = bench.submit()
    bench.engine.abort(handle)
    order = process.orders.get(timeout=PATIENCE)
    assert order == wire.Abort(number)
    process.say(step(number))
    process.die()
    assert stays.ended.wait(PATIENCE)
    bench.engine.abort(handle)
    assert not gone.steps
    assert not gone.ended.is_set()


def test_close_answers_what_is_left_once(bench) -> None:
    process = bench.start()
    _, sink, _ = bench.submit()
    bench.engine.close()
    assert isinstance(sink.error, Unavailable)
    assert sink.error.message == "the engine is closed"
    with pytest.raises(Unavailable, match="closed"):
        bench.submit()
    bench.engine.close()
    assert process.reaped == 1
    assert not Path(bench.engine._folder.name).exists()


def test_close_after_a_death(bench) -> None:
    process = bench.start()
    process.die()
    bench.engine.close()
    bench.engine.close()
    assert process.reaped == 1


def test_a_report_that_makes_no_sense_ends_the_engine_and_not_in_silence(bench) -> None:
    process = bench.start()
    _, sink, number = bench.submit()
    process.say(wire.Columns(number, [], None, 0, 0))
    assert sink.ended.wait(PATIENCE)
    assert isinstance(sink.error, StageFailed)
    assert sink.error.message.startswith("the thread of the SGLang engine has failed: IndexError")
    assert process.reaped == 1


def test_what_the_process_says_of_its_end_is_passed_on(bench) -> None:
    process = bench.start()
    _, sink, _ = bench.submit()
    process.say(wire.Dead(StageFailed("a process of the SGLang engine has died (status 9)").to_wire()))
    assert sink.ended.wait(PATIENCE)
    assert sink.error.message == "a process of the SGLang engine has died (status 9): ValueError: why"


def test_an_engine_starts_once(bench) -> None:
    bench.start()
    with pytest.raises(RuntimeError, match="started once"):
        bench.engine.start()
    bench.engine.close()
    with pytest.raises(RuntimeError, match="started once"):
        bench.engine.start()


def test_a_death_before_it_is_ready_is_why_it_did_not_start(monkeypatch) -> None:
    bench = Bench(monkeypatch, wire.Dead(ConfigError("no such option").to_wire()))
    with pytest.raises(Unavailable, match="has not been started"):
        bench.engine.submit("r", Prompt(tokens=[1]), SamplingParams(max_new_tokens=1), Sink())
    with pytest.raises(ConfigError, match=r"^no such option$"):
        bench.engine.start()
    bench.engine.close()


def test_close_ends_a_start_that_waits(monkeypatch) -> None:
    bench = Bench(monkeypatch)
    errors: SimpleQueue[Exception] = SimpleQueue()

    def run() -> None:
        try:
            bench.engine.start()
        except ConfigError as error:
            errors.put(error)

    thread = threading.Thread(target=run)
    thread.start()
    bench.made.get(timeout=PATIENCE).orders.get(timeout=PATIENCE)
    bench.engine.close()
    thread.join(PATIENCE)
    assert "the engine is closed" in str(errors.get(timeout=PATIENCE))
