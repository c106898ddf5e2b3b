"""What SGLang generates: the reference's codes, and the embedded engine's for every seed."""

from __future__ import annotations

import os
import sys
import time

import numpy as np
import psutil
import pytest

from omni.engines.base import Prompt, SamplingParams
from omni.errors import BadRequest, Busy


@pytest.fixture(scope="module")
def engine(start, source):
    """Chunks of 48 positions, so that most prompts come in several."""
    return start(source, max_total_tokens=4096, chunked_prefill_size=48, max_running_requests=16, max_waiting=8)


def greedy(count: int) -> SamplingParams:
    return SamplingParams(max_new_tokens=count, temperature=0.0)


def wait_until(true, seconds: float = 5.0) -> float:
    begin = time.monotonic()
    while not true():
        assert time.monotonic() - begin < seconds
        time.sleep(0.01)
    return time.monotonic() - begin


@pytest.mark.parametrize("case", ["plain", "one_ref"])
def test_greedy_is_the_references(engine, tools, golden, case) -> None:
    out = golden[f"greedy.{case}.out"]
    codes, reason = tools.run(engine, tools.prompt(golden[f"prompt.{case}.0.values"]), greedy(out.shape[1]))
    assert reason == "length"
    assert codes == out[1:].T.tolist()


def test_sixteen_at_once_equal_the_embedded_engines(engine, tools, work, expected) -> None:
    assert len({tuple(map(tuple, codes)) for codes, _ in expected}) > 10
    before = engine.stats()
    sinks = [tools.submit(engine, *job) for job in work]
    assert [sink.result() for sink in sinks] == expected
    stats = engine.stats()
    generated = sum(len(codes) for codes, _ in expected)
    assert stats.generated_tokens_total - before.generated_tokens_total == generated
    assert stats.steps_total - before.steps_total < generated / 3, "they were not decoded together"


def test_staggered_requests_equal_the_embedded_engines(engine, tools, work, expected) -> None:
    """Each begins when the one before has given its first steps."""
    sinks = []
    for job in work:
        sinks.append(tools.submit(engine, *job))
        assert sinks[-1].begun.wait(tools.patience)
    assert [sink.result() for sink in sinks] == expected


def test_end_token_ends(engine, torch_engine, tools, golden) -> None:
    """At a high temperature the tiny model meets its end token now and then."""
    prompt = tools.prompt(golden["prompt.plain.0.values"])
    jobs = [(prompt, SamplingParams(max_new_tokens=150, temperature=1.9, seed=seed)) for seed in range(6)]
    wanted = [tools.run(torch_engine, *job) for job in jobs]
    assert sum(reason == "stop" for _, reason in wanted) >= 2
    sinks = [tools.submit(engine, *job) for job in jobs]
    assert [sink.result() for sink in sinks] == wanted
    for sink in sinks:
        if sink.outputs[-1].finish_reason == "stop":
            assert sink.outputs[-1].codes is None


def test_one_step_can_be_asked_for(engine, tools, golden) -> None:
    codes, reason = tools.run(engine, tools.prompt(golden["prompt.plain.0.values"]), greedy(1))
    assert (codes, reason) == (golden["greedy.plain.out"][1:, :1].T.tolist(), "length")


def test_steps_arrive_as_they_are_made(engine, tools, golden) -> None:
    sink = tools.submit(engine, tools.prompt(golden["prompt.plain.0.values"]), greedy(180))
    assert sink.begun.wait(tools.patience)
    assert not sink.ended.is_set()
    assert len(sink.outputs) < 90
    assert len(sink.result()[0]) == 180


# The prefix cache -------------------------------------------------------------------------------------------------


def spoken(rng, begin: int, codes: np.ndarray, text: int) -> Prompt:
    """A voice of the given codes ``(4, n)`` and a random text after it."""
    before, after = rng.integers(0, 400, 8), rng.integers(0, 400, text)
    tokens = np.concatenate((np.arange(8), codes[0] + begin, after))
    padded = np.zeros((4, len(tokens)), np.int64)
    padded[:, len(before) : len(before) + codes.shape[1]] = codes
    return Prompt(tokens=tokens, codes=padded)


def test_a_voice_is_found_again_with_another_text(engine, torch_engine, tools, source) -> None:
    rng = np.random.default_rng(0)
    begin = source.open()[0].semantic_begin
    voice = rng.integers(0, 128, (4, 200))
    first, second = (spoken(rng, begin, voice, 12) for _ in range(2))
    for prompt, cached in ((first, 0), (second, 208), (first, 219)):
        sink = tools.submit(engine, prompt, greedy(8))
        assert sink.result() == tools.run(torch_engine, prompt, greedy(8))
        assert sink.cached == cached


def test_voices_that_differ_in_one_residual_code_are_kept_apart(engine, torch_engine, tools, source) -> None:
    rng = np.random.default_rng(1)
    begin = source.open()[0].semantic_begin
    voice = rng.integers(0, 128, (4, 60))
    other = voice.copy()
    other[-1, 0] = (other[-1, 0] + 64) % 128
    one, two = (spoken(np.random.default_rng(2), begin, codes, 5) for codes in (voice, other))
    assert (one.tokens == two.tokens).all()
    wanted = [tools.run(torch_engine, prompt, greedy(10)) for prompt in (one, two)]
    assert wanted[0] != wanted[1]
    for index in (0, 1, 0, 1):
        assert tools.run(engine, (one, two)[index], greedy(10)) == wanted[index]
    sink = tools.submit(engine, two, greedy(2))
    sink.result()
    assert sink.cached == len(two.tokens) - 1


def test_salts_are_kept_apart(engine, tools, golden) -> None:
    values = golden["prompt.one_ref.0.values"]
    cached = []
    for salt in (b"a", b"a", b"b"):
        prompt = tools.prompt(values)
        sink = tools.submit(engine, Prompt(tokens=prompt.tokens, codes=prompt.codes, salt=salt), greedy(2))
        sink.result()
        cached.append(sink.cached)
    assert cached == [0, values.shape[1] - 1, 0]


@pytest.mark.parametrize("change", ["none", "residual", "zero"])
def test_generated_frames_are_not_taken_for_a_prompts(engine, torch_engine, tools, golden, source, change) -> None:
    """A prompt that goes on with the tokens of an earlier generation: SGLang keeps those without their codes."""
    begin = source.open()[0].semantic_begin
    prompt = tools.prompt(golden["prompt.plain.0.values"])
    codes = np.array(tools.run(engine, prompt, greedy(30))[0]).T
    if change == "residual":
        codes[1:] = (codes[1:] + 5) % 128
    elif change == "zero":
        codes[:] = 0
    longer = Prompt(
        tokens=np.concatenate((prompt.tokens, codes[0] + begin)), codes=np.concatenate((prompt.codes, codes), 1)
    )
    sink = tools.submit(engine, longer, greedy(10))
    assert sink.result() == tools.run(torch_engine, longer, greedy(10))
    # Not one of its frames, whatever earlier prompts have left.
    assert sink.cached <= len(prompt.tokens)


# Clients that do not read, or go away -----------------------------------------------------------------------------


def test_a_slow_client_loses_nothing_and_stops_nobody(engine, tools, work, expected) -> None:
    slow = [tools.submit(engine, *job, credit=2) for job in work[:4]]
    others = [tools.submit(engine, *job) for job in work[4:]]
    assert [sink.result() for sink in others] == expected[4:]
    assert [len(sink.outputs) for sink in slow] == [2] * 4
    assert engine.stats().paused == 4
    for sink in slow:
        sink.open()
    assert [sink.result() for sink in slow] == expected[:4]
    assert engine.stats().paused == 0


def test_abort_frees(engine, tools, golden) -> None:
    wait_until(lambda: engine.stats().running == 0)
    rest = engine.stats().kv_tokens_used
    prompt = tools.prompt(golden["prompt.one_ref.0.values"])
    # More than run at once: some are aborted in the queue, and one with a sink that is full.
    sinks = [tools.submit(engine, prompt, greedy(300), credit=1 if i == 0 else None) for i in range(20)]
    for sink in sinks[:8]:
        assert sink.begun.wait(tools.patience)
    wait_until(lambda: engine.stats().kv_tokens_used > rest)
    for sink in sinks:
        engine.abort(sink.handle)
    seconds = wait_until(lambda: engine.stats().running + engine.stats().waiting == 0)
    assert seconds < 1.5
    wait_until(lambda: engine.stats().kv_tokens_used == rest, 1.0)
    counts = [len(sink.outputs) for sink in sinks]
    engine.abort(sinks[0].handle)
    assert tools.run(engine, prompt, greedy(3))[1] == "length"
    assert [len(sink.outputs) for sink in sinks] == counts
    assert not any(sink.ended.is_set() for sink in sinks)


def test_abort_before_anything_has_happened(engine, tools, golden) -> None:
    prompt = tools.prompt(golden["prompt.plain.0.values"])
    for _ in range(3):
        # Aborts that overtake one another: SGLang's process meets several orders in one turn of its loop.
        sinks = [tools.submit(engine, prompt, greedy(300)) for _ in range(20)]
        for sink in reversed(sinks):
            engine.abort(sink.handle)
        wait_until(lambda: engine.stats().running + engine.stats().waiting == 0)


def test_a_sink_that_raises_harms_nobody(engine, tools, golden) -> None:
    class Broken(tools.Sink):
        def push(self, output) -> None:
            raise RuntimeError("full disk")

    prompt = tools.prompt(golden["prompt.plain.0.values"])
    engine.submit("broken", prompt, greedy(300), Broken())
    assert len(tools.run(engine, prompt, greedy(20))[0]) == 20
    wait_until(lambda: engine.stats().running == 0)


# Requests that are refused ----------------------------------------------------------------------------------------


def test_what_cannot_be_served_is_refused(engine, tools, golden) -> None:
    values = golden["prompt.one_ref.0.values"]
    prompt = tools.prompt(values)
    limit = engine.max_tokens

    def refused(param: str, prompt=prompt, **params) -> None:
        with pytest.raises(BadRequest) as error:
            engine.submit("r", prompt, SamplingParams(**{"max_new_tokens": 4, **params}), tools.Sink())
        assert error.value.param == param

    refused("max_new_tokens", max_new_tokens=0)
    refused("max_new_tokens", max_new_tokens=limit - values.shape[1] + 1)
    refused("temperature", temperature=float("nan"))
    refused("top_p", top_p=0.0)
    refused("top_k", top_k=-1)
    refused("repetition_penalty", repetition_penalty=1.1)
    refused("speed", extra={"speed": 2})
    refused("prompt", Prompt(tokens=[]))
    refused("prompt", Prompt(tokens=[640]))
    refused("codes", Prompt(tokens=prompt.tokens, codes=prompt.codes[:3]))
    refused("codes", Prompt(tokens=prompt.tokens, codes=prompt.codes + 100))


def test_the_longest_request_that_is_taken_is_served_in_full(engine, tools) -> None:
    assert engine.max_tokens > 4000
    long = Prompt(tokens=np.arange(engine.max_tokens - 4) % 400)
    codes, reason = tools.run(engine, long, greedy(4))
    assert (len(codes), reason) == (4, "length")


def test_a_full_queue_is_busy(engine, tools, golden) -> None:
    prompt = tools.prompt(golden["prompt.plain.0.values"])
    sinks = [tools.submit(engine, prompt, greedy(200)) for _ in range(24)]
    with pytest.raises(Busy) as error:
        tools.submit(engine, prompt, greedy(1))
    assert error.value.retry_after
    for sink in sinks:
        engine.abort(sink.handle)
    wait_until(lambda: engine.stats().running + engine.stats().waiting == 0)


# The processes ----------------------------------------------------------------------------------------------------


def test_this_process_is_left_as_it_was(engine) -> None:
    assert "sglang" not in sys.modules
    assert not [name for name in os.environ if name.startswith("SGLANG")]


def family(engine) -> list[psutil.Process]:
    host = psutil.Process(engine._process.pid)
    return [host, *host.children(recursive=True)]


def test_nothing_burns_a_core_while_nothing_runs(engine) -> None:
    wait_until(lambda: engine.stats().running == 0)
    time.sleep(0.5)

    def used() -> float:
        return sum(sum(process.cpu_times()[:2]) for process in family(engine))

    before = used()
    time.sleep(3)
    assert used() - before < 0.3
