"""A KV cache that is too small for what runs: SGLang takes requests back and computes them anew, exactly."""

from __future__ import annotations

import pytest

from omni.engines.base import SamplingParams


@pytest.fixture(scope="module")
def engine(start, source):
    """A small cache in pages of 4 positions, and a scheduler that hopes for the best. How many requests meet in it is a
    matter of time, so SGLang's own switch for tests takes one back every few steps as well."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SGLANG_TEST_RETRACT", "1")
        patch.setenv("SGLANG_TEST_RETRACT_INTERVAL", "11")
        return start(
            source,
            max_total_tokens=400,
            page_size=4,
            chunked_prefill_size=64,
            max_running_requests=16,
            schedule_conservativeness=0.0,
        )


def test_requests_that_were_taken_back_equal_the_embedded_engines(engine, tools, work, expected) -> None:
    sinks = [tools.submit(engine, *job) for job in work]
    assert [sink.result() for sink in sinks] == expected
    assert engine.stats().preemptions_total > 5
    assert engine.stats().kv_tokens_total <= 400


@pytest.mark.parametrize("round_", [1, 2])
def test_one_prompt_with_many_seeds(engine, torch_engine, tools, golden, round_) -> None:
    """What was generated after the same prompt before must not be taken for what a request itself has generated."""
    prompt = tools.prompt(golden["prompt.plain.0.values"])
    jobs = [(prompt, SamplingParams(max_new_tokens=70, temperature=1.0, seed=seed)) for seed in range(12)]
    wanted = [tools.run(torch_engine, *job) for job in jobs]
    before = engine.stats().preemptions_total
    sinks = [tools.submit(engine, *job) for job in jobs]
    assert [sink.result() for sink in sinks] == wanted
    assert engine.stats().preemptions_total > before + 5
