"""What the embedded engine does when a request, the model or the device fails."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

from omni.engines.base import Prompt, SamplingParams
from omni.errors import StageFailed, Unavailable


def greedy(count: int = 10) -> SamplingParams:
    return SamplingParams(max_new_tokens=count, temperature=0.0)


def endless(count: int) -> SamplingParams:
    return SamplingParams(max_new_tokens=count, temperature=0.0, extra={"endless": True})


def test_a_request_that_breaks_the_step_fails_alone(toys, make_engine, run) -> None:
    model = toys.Text()
    engine = make_engine(model)
    work = [(Prompt(tokens=[i + 1, 3, 5]), greedy(12)) for i in range(4)]
    expected = run(engine, work)
    poisoned = toys.Collector()
    params = SamplingParams(max_new_tokens=300, temperature=1.0, seed=1, extra={"poison": True})
    engine.submit("bad", Prompt(tokens=[17]), params, poisoned)
    sinks = [toys.Collector() for _ in work]
    for (prompt, params), sink in zip(work, sinks, strict=True):
        engine.submit("good", prompt, params, sink)
    assert poisoned.ended.wait(10)
    assert isinstance(poisoned.error, StageFailed)
    assert "boom" in poisoned.error.message
    assert len(poisoned.outputs) == 3
    assert [sink.result() for sink in sinks] == expected
    assert engine.stats().kv_tokens_used == 0


def test_prefill_that_fails_takes_only_its_request(toys, make_engine, run) -> None:
    model = toys.Text()
    engine = make_engine(model)
    bad = Prompt(tokens=[1, 2, 3], embeds={"shift": np.zeros(5, np.float32)})
    sinks = [toys.Collector() for _ in range(3)]
    hold = threading.Event()
    model.fail = lambda where, rows: hold.wait(10) and None
    for prompt, sink in zip([Prompt(tokens=[4, 5, 6]), bad, Prompt(tokens=[7, 8])], sinks, strict=True):
        engine.submit("r", prompt, greedy(5), sink)
    hold.set()
    assert sinks[0].result()
    assert sinks[2].result()
    with pytest.raises(StageFailed):
        sinks[1].result()


def test_short_memory_shrinks_the_batch(toys, make_engine, run) -> None:
    model = toys.Text()
    work = [(Prompt(tokens=[i + 1, 3]), greedy(9)) for i in range(8)]
    expected = run(make_engine(model), work)

    def fail(where: str, rows: int) -> None:
        if where == "step" and rows > 3:
            raise torch.OutOfMemoryError("CUDA out of memory")

    model.fail = fail
    engine = make_engine(model)
    assert run(engine, work) == expected
    assert engine.stats().preemptions_total > 0


def test_engine_that_dies_fails_all_and_says_so(toys, make_engine, monkeypatch) -> None:
    model = toys.Text()
    engine = make_engine(model)

    def lost(error: Exception) -> None:
        raise RuntimeError("device lost")

    monkeypatch.setattr(engine, "_survive", lost)

    def fail(where: str, rows: int) -> None:
        raise RuntimeError("boom")

    model.fail = fail
    sinks = [toys.Collector(credit=0), toys.Collector()]
    for sink in sinks:
        engine.submit("r", Prompt(tokens=[1, 2]), greedy(3), sink)
    for sink in sinks:
        with pytest.raises(StageFailed, match="device lost"):
            sink.result()
    with pytest.raises(Unavailable, match="device lost"):
        engine.submit("r", Prompt(tokens=[1]), greedy(1), toys.Collector())
    assert "device lost" in engine.down
    stats = engine.stats()
    assert (stats.running, stats.waiting, stats.paused, stats.kv_tokens_used) == (0, 0, 0, 0)


def test_statistics_know_a_request_from_the_moment_it_is_submitted(toys, make_engine) -> None:
    model, entered, go_on = toys.Text(), threading.Event(), threading.Event()

    def hold(where: str, rows: int) -> None:
        entered.set()
        go_on.wait(30)

    model.fail = hold
    engine = make_engine(model)
    sink = toys.Collector()
    engine.submit("r", Prompt(tokens=[1, 2, 3]), greedy(2), sink)
    assert engine.stats().running + engine.stats().waiting == 1
    assert entered.wait(30)
    assert engine.stats().running == 1, "its prompt is being computed"
    go_on.set()
    sink.result()


def test_a_request_that_cannot_join_does_not_stop_the_queue(toys, make_engine) -> None:
    model, admit = toys.Text(), toys.Text.admit

    def refuse(state, row, prompt, params, tokens, codes):
        if params.extra.get("bad"):
            raise RuntimeError("no row for this one")
        admit(model, state, row, prompt, params, tokens, codes)

    model.admit = refuse
    engine = make_engine(model, max_running=1)
    first, bad, good = toys.Collector(credit=0), toys.Collector(), toys.Collector()
    bad_params = SamplingParams(max_new_tokens=3, temperature=0.0, extra={"bad": True})
    engine.submit("first", Prompt(tokens=[5]), greedy(1), first)
    engine.submit("bad", Prompt(tokens=[1]), bad_params, bad)
    engine.submit("good", Prompt(tokens=[2]), greedy(3), good)
    with pytest.raises(StageFailed, match="no row"):
        bad.result()
    assert good.result()


def test_the_batch_grows_again_after_memory_was_short(toys, make_engine, run, monkeypatch) -> None:
    monkeypatch.setattr("omni.engines.torch.engine._STEPS_AFTER_SHORTAGE", 5)
    model, short = toys.Text(), [True]

    def fail(where: str, rows: int) -> None:
        if where == "step" and rows == 4 and short.pop() if short else False:
            raise torch.OutOfMemoryError("out of memory")

    model.fail = fail
    engine = make_engine(model, max_running=4)
    work = [(Prompt(tokens=[n]), endless(40)) for n in (1, 2, 3, 4)]
    assert [len(codes) for codes in run(engine, work)] == [40] * 4
    assert not short, "memory was short once"
    assert engine._scheduler.batch_limit == 4


def test_sink_that_raises_loses_its_request_only(toys, make_engine, run) -> None:
    engine = make_engine(toys.Text())

    class Broken(toys.Collector):
        def push(self, output) -> None:
            self.started.set()
            raise ValueError("broken sink")

    broken = Broken()
    engine.submit("b", Prompt(tokens=[1, 2]), endless(300), broken)
    assert broken.started.wait(10)
    assert run(engine, [(Prompt(tokens=[1]), greedy(3))])[0]
    assert engine.stats().running == 0


def test_close_fails_what_is_left(toys, make_engine) -> None:
    engine = make_engine(toys.Text())
    sink = toys.Collector(credit=1)
    engine.submit("r", Prompt(tokens=[1]), endless(100), sink)
    assert sink.full.wait(10)
    engine.close()
    with pytest.raises(Unavailable):
        sink.result()
    with pytest.raises(Unavailable):
        engine.submit("r", Prompt(tokens=[1]), greedy(1), toys.Collector())
    engine.close()
