"""Slow AR, fast AR and sampling against the reference's arrays."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fish_s2pro.sampling import Draw, Filter
from omni.engines.base import SamplingParams
from omni.engines.torch import PromptSlice, Step, race, top_candidates

TOLERANCE = {"atol": 1e-4, "rtol": 0.0}


def part(tools, values: torch.Tensor, start: int = 0, stop: int | None = None) -> PromptSlice:
    stop = values.shape[1] if stop is None else stop
    cut = values[:, start:stop].long()
    return PromptSlice(tools.prompt(values), start, stop, cut[0], cut[1:])


def causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Whole-sequence attention, written plainly."""
    share = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(share, 1), v.repeat_interleave(share, 1)
    mixed = F.scaled_dot_product_attention(q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1), is_causal=True)
    return mixed.transpose(0, 1).reshape(len(q), -1)


def hidden_of(model, tools, values: torch.Tensor) -> torch.Tensor:
    x = model.embed(part(tools, values))
    return model(x, torch.arange(len(x)), lambda _, q, k, v: causal(q, k, v))


def step_of(params: dict, *, source=None, index: int = 0, candidates: int = 0, rows: int = 1) -> Step:
    def full(value: float, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        return torch.full((rows,), value, dtype=dtype)

    extra = {} if source is None else {"source": source}
    return Step(
        rows=torch.arange(rows),
        seed=full(0),
        index=full(index),
        temperature=full(params["temperature"], torch.float32),
        top_p=full(params["top_p"], torch.float32),
        top_k=full(params["top_k"]),
        candidates=candidates,
        **extra,
    )


def rule_of(step: Step) -> Filter:
    return Filter(step.temperature, step.top_p, step.top_k)


def recorded(u: torch.Tensor, vocabulary: int, size: int, codebooks: int):
    """A uniform source that reads the reference's stream: per frame one number per token for the normal draw, as many
    for the high one, then ``size`` for each residual codebook."""
    frame = 2 * vocabulary + (codebooks - 1) * size

    def source(seed, index, stream, ids):
        offset = {0: 0, codebooks: vocabulary}.get(stream, 2 * vocabulary + (stream - 1) * size)
        return u[index.unsqueeze(1) * frame + offset + ids]

    return source


# Slow AR --------------------------------------------------------------------------------------------------------


def test_slow_ar_layer_by_layer(model, tools, golden) -> None:
    x = model.embed(part(tools, golden["slow.inp"]))
    torch.testing.assert_close(x, golden["slow.embed"], **TOLERANCE)
    factors = model.stack.rope.at(torch.arange(len(x)))
    for index, layer in enumerate(model.stack.layers):
        seen = {}

        def attend(q, k, v, seen=seen):
            seen.update(q=q, k=k)
            return causal(q, k, v)

        attention = layer.attention(x, model.stack.rope, factors, attend)
        torch.testing.assert_close(attention, golden[f"slow.attn{index}"], **TOLERANCE)
        if index == 0:
            qk, _ = layer.qkv(layer.norm(x, layer.attention_norm))
            torch.testing.assert_close(qk[:, :4], golden["slow.l0.q_prerope"], **TOLERANCE)
            torch.testing.assert_close(seen["q"], golden["slow.l0.q"], **TOLERANCE)
            torch.testing.assert_close(seen["k"], golden["slow.l0.k"], **TOLERANCE)
        x = layer(x, model.stack.rope, factors, attend)
        torch.testing.assert_close(x, golden[f"slow.layer{index}"], **TOLERANCE)
    hidden = hidden_of(model, tools, golden["slow.inp"])
    torch.testing.assert_close(hidden, golden["slow.hidden"], **TOLERANCE)
    torch.testing.assert_close(model.condition(hidden), golden["slow.fast_in"], **TOLERANCE)


def test_head_is_the_legal_rows_of_the_whole_head(model, golden) -> None:
    c = model.config
    legal = [*range(c.semantic_begin, c.semantic_end + 1), c.end_id]
    found = model.logits(golden["slow.hidden"])
    torch.testing.assert_close(found, golden["slow.logits"][:, legal], **TOLERANCE)


def test_rope_tables(model, golden) -> None:
    table = torch.view_as_real(model.stack.rope.table)
    assert torch.equal(table[: len(golden["slow.rope"])], golden["slow.rope"])
    assert torch.equal(table[[1000, 2047, 4000]], golden["slow.rope_far"])
    fast = torch.view_as_real(model.depth._rope.table)
    assert torch.equal(fast, golden["fast.rope"])


def test_steps_with_a_paged_cache(model, tools, golden, meta) -> None:
    from omni.engines.torch.attention import SdpaAttention, Segment

    values, prefix = golden["slow.inp"], meta["slow"]["prefix"]
    attention = SdpaAttention(model.kv, 32, 16, device=model.device, dtype=model.dtype)
    pages = list(range(20, 0, -1))
    hidden = []
    for start, stop in ((0, 50), (50, prefix)):
        positions = torch.arange(start, stop)
        x = model.embed(part(tools, values, start, stop))
        hidden = [model(x, positions, attention.prefill([Segment(start, stop, pages)]))[-1:]]
    for t in range(prefix, values.shape[1]):
        plan = attention.decode(torch.tensor([pages]), torch.tensor([t]), [(0, 1, t // 16 + 1)])
        hidden.append(model(model.embed(part(tools, values, t, t + 1)), torch.tensor([t]), plan))
    found = torch.cat(hidden)
    torch.testing.assert_close(found, golden["step.hidden"], **TOLERANCE)
    c = model.config
    legal = [*range(c.semantic_begin, c.semantic_end + 1), c.end_id]
    torch.testing.assert_close(model.logits(found), golden["step.logits"][:, legal], **TOLERANCE)


# Fast AR --------------------------------------------------------------------------------------------------------


def test_fast_ar_teacher_forced(model, golden) -> None:
    codes = golden["fast.codes"].long()
    first = model.condition(golden["fast.hidden_in"]).unsqueeze(1)
    x = torch.cat((first, model.fast_embeddings[codes[:, :-1]]), 1)
    logits = model.depth(x) @ model.fast_head.t()
    torch.testing.assert_close(logits, golden["fast.logits"], **TOLERANCE)


def test_fast_ar_frame_with_positions_0_and_1_in_one_pass(model, golden) -> None:
    codes, found = golden["fast.codes"].long(), []

    def pick(position: int, hidden: torch.Tensor) -> torch.Tensor:
        found.append(hidden @ model.fast_head.t())
        return codes[:, position]

    model.depth.generate(
        model.condition(golden["fast.hidden_in"]),
        codes[:, 0],
        model.codebooks,
        lambda _, code: model.fast_embeddings[code],
        pick,
    )
    torch.testing.assert_close(torch.stack(found, 1), golden["fast.logits"][:, 1:], **TOLERANCE)


# Sampling -------------------------------------------------------------------------------------------------------


def test_sampling_probabilities(golden, meta) -> None:
    ties = 0
    for case in meta["sampling"]:
        logits = golden[f"samp.logits.{case['logits']}"].unsqueeze(0)
        values, ids = top_candidates(logits, 0)
        rule = Filter(*(torch.tensor([case[name]]) for name in ("temperature", "top_p", "top_k")))
        p = rule(values, logits.logsumexp(-1, keepdim=True))
        found = torch.zeros_like(logits).scatter(1, ids, p)[0]
        expected = golden[f"{case['key']}.probs"]
        # At top_p 1 the reference drops what lies beyond a cumulative sum that rounding lifted over 1.
        lost = int((found > 0).sum()) - case["n_kept"]
        assert lost == 0 or (lost == 1 and case["top_p"] == 1.0), case["key"]
        if not torch.allclose(found, expected, atol=1e-5):
            # An exact tie at the edge: either of two equal entries may stay.
            ties += 1
            assert case["logits"] == "two_equal"
            torch.testing.assert_close(found.sort().values, expected.sort().values, atol=1e-5, rtol=0.0)
            continue
        u = golden[f"{case['key']}.u"]
        assert int(ids[0, race(p, u[ids])]) == case["idx"], case["key"]
    assert ties <= 2


def test_few_candidates_draw_what_all_would(golden, meta) -> None:
    for case in meta["sampling"]:
        if not 1 < case["top_k"] <= 40:
            continue
        u = golden[f"{case['key']}.u"]
        logits = golden[f"samp.logits.{case['logits']}"].unsqueeze(0)
        steps = [step_of(case, source=lambda s, i, n, ids, u=u: u[ids], candidates=k) for k in (0, 40)]
        picks = [int(Draw(logits, step).pick(0, rule_of(step))) for step in steps]
        assert picks[0] == picks[1], case["key"]


def test_temperature_zero_and_top_k_one_are_greedy(golden) -> None:
    logits = golden["samp.logits.wide"].unsqueeze(0)
    for params in ({"temperature": 0.0, "top_p": 1.0, "top_k": 0}, {"temperature": 1.0, "top_p": 1.0, "top_k": 1}):
        for candidates in (0, 1, 64):
            step = step_of(params, candidates=candidates)
            assert int(Draw(logits, step).pick(0, rule_of(step))) == int(logits.argmax())


@pytest.mark.parametrize("candidates", [0, 64])
def test_repetition_aware_draw(model, tools, golden, meta, candidates) -> None:
    c = model.config
    fired = 0
    for case in meta["ras"]:
        source = recorded(golden[case["u"]], c.text.vocab_size, c.codebook_size, c.codebooks)
        # The stream of one frame, whatever the index of the step.
        step = step_of(
            case,
            source=lambda s, i, n, ids, source=source: source(s, i * 0, n, ids),
            index=0 if case["key"].endswith(".none") else 5,
            candidates=candidates,
        )
        state = model.new_state(1)
        if f"{case['key']}.window" in golden:
            state.window[0] = golden[f"{case['key']}.window"][0]
        hidden = hidden_of(model, tools, golden[case["prompt"]])[-1:]
        result = model.step(hidden, step, state)
        assert int(result.tokens) == case["result"], case["key"]
        assert torch.cat((result.tokens, result.codes[0])).tolist() == golden[f"{case['key']}.out"].tolist()
        fired += case["result"] != case["without_window"]
    assert fired == 2


def test_window_holds_ten_tokens_and_never_the_first(model) -> None:
    state = model.new_state(2)
    hidden = torch.randn(1, model.width, generator=torch.Generator().manual_seed(0)).repeat(2, 1)
    params = {"temperature": 1.0, "top_p": 1.0, "top_k": 0}
    tokens = []
    for index in range(14):
        result = model.step(hidden, step_of(params, index=index, rows=2), state)
        tokens.append(result.tokens)
        expected = torch.zeros(10, dtype=torch.int64)
        recent = torch.stack(tokens[1:][-10:])[:, 0] if index else expected[:0]
        expected[10 - len(recent) :] = recent
        assert torch.equal(state.window[0], expected)
    again = model.new_state(1)
    model.admit(again, 0, None, None, torch.stack(tokens)[:, 0], result.codes.t())
    assert torch.equal(again.window[0], state.window[0])


# Generation through the engine ------------------------------------------------------------------------------------


def greedy(count: int, **extra) -> SamplingParams:
    return SamplingParams(max_new_tokens=count, **{"temperature": 0.8, "top_p": 0.8, "top_k": 1, **extra})


@pytest.mark.parametrize("case", ["plain", "one_ref", "non_ascii"])
@pytest.mark.parametrize("how", [{"top_k": 1}, {"temperature": 0.0, "top_k": 30}])
def test_greedy(model, tools, golden, case, how) -> None:
    out = golden[f"greedy.{case}.out"]
    codes, reason = tools.run(tools.engine(model), golden[f"prompt.{case}.0.values"], greedy(out.shape[1], **how))
    np.testing.assert_array_equal(codes, out[1:].numpy())
    assert reason == "length"


def test_greedy_logits(model, tools, golden) -> None:
    c = model.config
    legal = [*range(c.semantic_begin, c.semantic_end + 1), c.end_id]
    for case in ("plain", "one_ref", "non_ascii"):
        values = torch.cat((golden[f"prompt.{case}.0.values"], golden[f"greedy.{case}.out"][:, :7]), 1)
        logits = model.logits(hidden_of(model, tools, values)[-8:])
        expected = golden[f"greedy.{case}.slow_logits"]
        torch.testing.assert_close(logits, expected[:, legal], **TOLERANCE)
        illegal = torch.ones(expected.shape[1], dtype=torch.bool)
        illegal[legal] = False
        assert torch.isinf(expected[:, illegal]).all()


def test_every_prompt_case_generates_the_references_codes(model, tools, golden, meta) -> None:
    """All cases and batches at once; the last frame, which the reference loses, is there."""
    engine, sinks = tools.engine(model, kv_tokens=1024, page_size=8), {}
    for case in meta["prompts"]:
        for b in range(len(case["batches"])):
            name = f"prompt.{case['name']}.{b}"
            sinks[name] = tools.Sink()
            engine.submit(name, tools.prompt(golden[f"{name}.values"]), greedy(12), sinks[name])
    assert len(sinks) == 18
    for name, sink in sinks.items():
        codes, reason = sink.result()
        np.testing.assert_array_equal(codes, golden[f"{name}.y"][1:].numpy(), err_msg=name)
        np.testing.assert_array_equal(codes[:, :-1], golden[f"{name}.codes"].numpy())
        assert reason == "length"


@pytest.mark.parametrize("max_candidates", [64, 2])
def test_sampled_generation_with_the_references_noise(model, tools, golden, meta, max_candidates) -> None:
    c = model.config
    for case in meta["noise"]:
        source = recorded(golden[f"{case['key']}.u"], c.text.vocab_size, c.codebook_size, c.codebooks)
        engine = tools.engine(model, source=source, max_candidates=max_candidates)
        params = SamplingParams(**{k: case[k] for k in ("max_new_tokens", "temperature", "top_p", "top_k")})
        out = golden[f"{case['key']}.out"]
        codes, reason = tools.run(engine, golden[f"prompt.{case['case']}.0.values"], params)
        frames = out.shape[1] - case["ended_by_im_end"]
        np.testing.assert_array_equal(codes, out[1:, :frames].numpy(), err_msg=case["key"])
        assert reason == ("stop" if case["ended_by_im_end"] else "length")
        if case["ended_by_im_end"]:
            assert int(out[0, -1]) == c.end_id


def test_sampled_generation_with_torchs_generator(model, tools, golden) -> None:
    c = model.config
    torch.manual_seed(42)
    out = golden["torchseed42.out"]
    sizes = [c.text.vocab_size, c.text.vocab_size, *[c.codebook_size] * (c.codebooks - 1)]
    u = torch.cat([torch.rand(n) for _ in range(out.shape[1]) for n in sizes])
    engine = tools.engine(model, source=recorded(u, c.text.vocab_size, c.codebook_size, c.codebooks))
    params = SamplingParams(max_new_tokens=out.shape[1], temperature=0.8, top_p=0.8, top_k=30)
    codes, _ = tools.run(engine, golden["prompt.plain.0.values"], params)
    kept = out[:, out[0] != c.end_id]
    np.testing.assert_array_equal(codes, kept[1:].numpy())


def test_normal_and_high_draws(model, tools, golden, meta) -> None:
    """Both slow draws of every frame, with the sequence forced to the reference's."""
    c = model.config
    for case in meta["noise"]:
        out, pairs = golden[f"{case['key']}.out"], golden[f"{case['key']}.normal_high"]
        values = torch.cat((golden[f"prompt.{case['case']}.0.values"], out[:, :-1]), 1)
        logits = model.logits(hidden_of(model, tools, values)[-out.shape[1] :])
        source = recorded(golden[f"{case['key']}.u"], c.text.vocab_size, c.codebook_size, c.codebooks)
        fired = []
        for index in range(out.shape[1]):
            step = step_of(case, source=source, index=index)
            draw = Draw(logits[index : index + 1], step, model.legal)
            normal = int(draw.pick(0, rule_of(step)))
            even = Filter(torch.tensor([1.0]), torch.tensor([0.9]), step.top_k)
            high = int(draw.pick(c.codebooks, even))
            assert [normal, high] == pairs[index].tolist()
            window = out[0, max(1, index - 10) : index].tolist()
            assert int(out[0, index]) == (high if normal in window else normal)
            if normal in window:
                fired.append(index)
        assert fired == case["ras_fired_steps"]


# Where the reference is wrong -------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["eos.0", "eos.1", "eos.2"])
def test_end_token_ends(ckpt, tools, golden, meta, key) -> None:
    from fish_s2pro.loader import load_ar

    case = next(c for c in meta["eos"] if c["key"] == key)
    model, _ = load_ar(ckpt, device=torch.device("cpu"), dtype=torch.float32)
    model.embeddings[model.config.end_id] *= case["im_end_row_scale"]
    model.cut_head()
    codes, reason = tools.run(tools.engine(model), golden["prompt.plain.0.values"], greedy(case["max_new_tokens"]))
    out = golden[f"{key}.out"]
    first_end = case["positions_of_im_end"][0]
    assert reason == "stop"
    assert int(out[0, first_end]) == model.config.end_id
    np.testing.assert_array_equal(codes, out[1:, :first_end].numpy())


def test_end_token_in_the_first_frame_ends(ckpt, tools, golden) -> None:
    """The reference does not look at the first frame's token and goes on."""
    from fish_s2pro.loader import load_ar

    model, _ = load_ar(ckpt, device=torch.device("cpu"), dtype=torch.float32)
    values = golden["prompt.plain.0.values"]
    direction = hidden_of(model, tools, values)[-1]
    model.head[len(model.legal) - 1] = direction * 10
    sink = tools.Sink()
    tools.engine(model).submit("r", tools.prompt(values), greedy(5), sink)
    codes, reason = sink.result()
    assert reason == "stop"
    assert codes.size == 0
    assert len(sink.outputs) == 1


def test_one_frame_can_be_asked_for(model, tools, golden) -> None:
    """The reference raises for a limit of one."""
    codes, reason = tools.run(tools.engine(model), golden["prompt.plain.0.values"], greedy(1))
    np.testing.assert_array_equal(codes, golden["greedy.plain.out"][1:, :1].numpy())
    assert reason == "length"
