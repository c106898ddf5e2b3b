"""A model of another kind on two ranks of tensor parallelism: what SGLang's layers are there for."""

from __future__ import annotations

import os
import time

import numpy as np
import pytest
import torch

from omni.engines.base import Prompt, SamplingParams
from omni.engines.torch import LayerStack, TorchEngine, parse_options
from omni.errors import BadRequest, StageFailed


@pytest.fixture(scope="module")
def toy():
    import toy_text

    return toy_text.ToySource(device="cpu", dtype="float32", seed=3)


@pytest.fixture(scope="module")
def reference(toy):
    engine = TorchEngine(toy.build(LayerStack, device=torch.device("cpu")), parse_options({"kv_tokens": 4096}))
    engine.start()
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def engine(start, toy):
    cores = sorted(os.sched_getaffinity(0))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SGLANG_CPU_OMP_THREADS_BIND", f"{cores[0]}|{cores[-1]}")
        return start(toy, tp_size=2, max_total_tokens=2048, max_running_requests=8, chunked_prefill_size=16)


def heard(seed: int, audio: np.ndarray | torch.Tensor, plain: int = 0) -> Prompt:
    text = np.random.default_rng(seed).integers(1, 39, 12)
    tokens = np.concatenate((text[:4], [39] * len(audio), text[4:]))
    return Prompt(tokens=tokens, embeds={"audio": audio}, plain=plain)


def test_text_and_embeddings_equal_the_embedded_engines(engine, reference, tools) -> None:
    rng = np.random.default_rng(0)
    jobs = []
    for i in range(8):
        audio = rng.standard_normal((6 + i, 32)).astype(np.float32)
        params = SamplingParams(
            max_new_tokens=30, temperature=(0.0, 1.0)[i % 2], top_k=(0, 8, 0, 0)[i % 4], top_p=0.95, seed=i
        )
        jobs.append((heard(i, torch.from_numpy(audio) if i % 3 else audio), params))
    wanted = [tools.run(reference, *job) for job in jobs]
    assert len({str(codes) for codes, _ in wanted}) > 5
    sinks = [tools.submit(engine, *job) for job in jobs]
    assert [sink.result() for sink in sinks] == wanted
    assert all(len(codes) == 1 for sink in sinks for codes in sink.result()[0])


def test_audio_is_part_of_the_prefix(engine, reference, tools) -> None:
    rng = np.random.default_rng(1)
    one, two = (rng.standard_normal((10, 32)).astype(np.float32) for _ in range(2))
    params = SamplingParams(max_new_tokens=8, temperature=0.0)
    cached = []
    for audio in (one, two, one):
        sink = tools.submit(engine, heard(50, audio), params)
        assert sink.result() == tools.run(reference, heard(50, audio), params)
        cached.append(sink.cached)
    assert cached == [0, 0, 21]


def test_what_comes_before_the_audio_is_shared(engine, reference, tools) -> None:
    rng = np.random.default_rng(2)
    params = SamplingParams(max_new_tokens=8, temperature=0.0)
    cached = []
    for _ in range(2):
        prompt = heard(51, rng.standard_normal((10, 32)).astype(np.float32), plain=4)
        sink = tools.submit(engine, prompt, params)
        assert sink.result() == tools.run(reference, prompt, params)
        cached.append(sink.cached)
    assert cached == [0, 4]


def test_the_models_own_check_is_asked(engine, tools) -> None:
    with pytest.raises(BadRequest, match="no such token"):
        tools.submit(engine, Prompt(tokens=[40]), SamplingParams(max_new_tokens=1))


def test_a_model_that_raises_ends_the_engine_and_says_why(engine, tools) -> None:
    """The last test of this file: SGLang's scheduler does not survive its model."""
    params = SamplingParams(max_new_tokens=60, temperature=0.0)
    other = tools.submit(engine, Prompt(tokens=[5, 6, 7]), params)
    tools.submit(engine, Prompt(tokens=[1, 2]), SamplingParams(max_new_tokens=5, extra={"poison": True}))
    begin = time.monotonic()
    with pytest.raises(StageFailed, match="RuntimeError: boom"):
        other.result()
    assert time.monotonic() - begin < 3
