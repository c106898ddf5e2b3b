"""The real model's shape behind the engine: many requests, little memory, repeated voices."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fish_s2pro.prompts import Conversation, Reference
from omni.engines.base import Prompt, SamplingParams
from omni.errors import BadRequest


@pytest.fixture(scope="module")
def work(golden, meta) -> list[tuple[torch.Tensor, SamplingParams]]:
    """16 requests: all kinds of prompts, greedy and sampled."""
    names = [f"prompt.{case['name']}.0.values" for case in meta["prompts"]][:13] + ["prompt.plain.0.values"] * 3
    made = []
    for i, name in enumerate(names):
        params = SamplingParams(
            max_new_tokens=30 + 3 * i,
            temperature=0.0 if i % 4 == 0 else 0.6 + 0.05 * i,
            top_p=0.8 + 0.01 * i,
            top_k=(30, 0, 50, 5)[i % 4],
            seed=i,
        )
        made.append((golden[name], params))
    return made


def submit_all(engine, tools, work) -> list[np.ndarray]:
    sinks = [tools.Sink() for _ in work]
    for (values, params), sink in zip(work, sinks, strict=True):
        engine.submit("r", tools.prompt(values), params, sink)
    return [sink.result()[0] for sink in sinks]


def test_sixteen_at_once_equal_each_alone(model, tools, work) -> None:
    alone = tools.engine(model, prefix_cache=False)
    expected = [submit_all(alone, tools, [job])[0] for job in work]
    assert sum(e.shape[1] == p.max_new_tokens for e, (_, p) in zip(expected, work, strict=True)) > 8
    together = tools.engine(model)
    scarce = tools.engine(model, kv_tokens=500)
    for engine in (together, together, scarce):
        for found, want in zip(submit_all(engine, tools, work), expected, strict=True):
            np.testing.assert_array_equal(found, want)
    assert scarce.stats().preemptions_total > 0
    assert scarce.stats().kv_tokens_total <= 500
    assert together.stats().prefix_hit_tokens_total > 0
    for engine in (together, scarce):
        assert engine.stats().kv_tokens_used == 0


def test_repeated_voice_skips_its_prefill(model, tokenizer, tools) -> None:
    rng = np.random.default_rng(0)
    voice = Reference("What is said in it.", rng.integers(0, 128, (model.codebooks, 340)))
    engine = tools.engine(model)
    shares = []
    for text in ("One text.", "Another one."):
        prompt = Conversation(tokenizer, model.codebooks, [voice]).ask(text, 4096)
        sink = tools.Sink()
        engine.submit("r", prompt, SamplingParams(max_new_tokens=2, seed=0), sink)
        sink.result()
        shares.append(sink.outputs[0].cached_tokens / len(prompt.tokens))
        assert len(prompt.tokens) > 400
    assert shares[0] == 0
    assert shares[1] >= 0.9
    prompt = Conversation(tokenizer, model.codebooks, [voice]).ask("Another one.", 4096)
    sink = tools.Sink()
    engine.submit("r", prompt, SamplingParams(max_new_tokens=2, seed=0), sink)
    sink.result()
    assert sink.outputs[0].cached_tokens / len(prompt.tokens) >= 0.95


def test_voices_that_differ_in_one_residual_code_share_nothing(model, tokenizer, tools) -> None:
    codes = np.random.default_rng(1).integers(0, 128, (model.codebooks, 40))
    other = codes.copy()
    other[-1, 0] = (other[-1, 0] + 64) % 128
    params = SamplingParams(max_new_tokens=8, temperature=0.0)
    prompts = [Conversation(tokenizer, model.codebooks, [Reference("", c)]).ask("Hi.", 4096) for c in (codes, other)]
    assert (prompts[0].tokens == prompts[1].tokens).all()
    fresh = [tools.run(tools.engine(model), _values(p), params)[0] for p in prompts]
    engine = tools.engine(model, page_size=4)
    for index in (0, 1, 0, 1):
        sink = tools.Sink()
        engine.submit("r", prompts[index], params, sink)
        np.testing.assert_array_equal(sink.result()[0], fresh[index])


def _values(prompt: Prompt) -> torch.Tensor:
    return torch.cat((torch.as_tensor(prompt.tokens)[None], torch.as_tensor(prompt.codes)))


def test_later_batches_find_the_earlier_ones_in_the_cache(model, tokenizer, tools) -> None:
    engine = tools.engine(model, page_size=8)
    talk = Conversation(tokenizer, model.codebooks)
    known = 0
    for batch in range(3):
        prompt = talk.ask(f"This is batch {batch}.", 4096)
        sink = tools.Sink()
        engine.submit("r", prompt, SamplingParams(max_new_tokens=30, temperature=0.0), sink)
        codes, _ = sink.result()
        if known:
            assert sink.outputs[0].cached_tokens >= known - 8
        known = len(prompt.tokens) + codes.shape[1] - 1
        talk.answer(codes)


def test_what_the_model_cannot_do_is_refused(model, tools, golden) -> None:
    engine = tools.engine(model)
    values = golden["prompt.one_ref.0.values"]
    frame = int((values[0] >= model.config.semantic_begin).nonzero()[0])

    def refused(param: str, values=values, **params) -> None:
        with pytest.raises(BadRequest) as error:
            engine.submit("r", tools.prompt(values), SamplingParams(**{"max_new_tokens": 4, **params}), tools.Sink())
        assert error.value.param == param

    refused("repetition_penalty", repetition_penalty=1.1)
    refused("speed", extra={"speed": 2})
    refused("max_new_tokens", max_new_tokens=5000)
    for row, value, param in ((0, 640, "prompt"), (0, -1, "prompt"), (2, 128, "codes"), (1, -1, "codes")):
        changed = values.clone()
        changed[row, frame] = value
        refused(param, changed)
    # Codes beside a text token have no meaning, and no effect.
    changed = values.clone()
    changed[1:, 0] = 9999
    params = SamplingParams(max_new_tokens=6, temperature=0.0)
    np.testing.assert_array_equal(tools.run(engine, changed, params)[0], tools.run(engine, values, params)[0])


def test_half_precision_runs(ckpt, tools, golden) -> None:
    """bfloat16, as on a GPU: other rounding, so other codes, but the hidden states stay close."""
    from fish_s2pro.loader import load_ar
    from omni.engines.torch import PromptSlice

    model, _ = load_ar(ckpt, device=torch.device("cpu"), dtype=torch.bfloat16)
    values = golden["slow.inp"].long()
    x = model.embed(PromptSlice(tools.prompt(values), 0, values.shape[1], values[0], values[1:]))
    assert x.dtype == torch.bfloat16

    def attend(layer, q, k, v):
        q, k, v = (t.transpose(0, 1) for t in (q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)))
        mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return mixed.transpose(0, 1).reshape(values.shape[1], -1)

    hidden = model(x, torch.arange(len(x)), attend).float()
    difference = (hidden - golden["slow.hidden"]).square().mean().sqrt()
    assert difference / golden["slow.hidden"].square().mean().sqrt() < 0.03
    codes, _ = tools.run(tools.engine(model), golden["prompt.plain.0.values"], SamplingParams(max_new_tokens=5, seed=0))
    assert codes.shape[0] == 4
    assert codes.shape[1] >= 1
