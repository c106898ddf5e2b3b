"""Prompts, talker, code predictor and sampling against the reference's arrays."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from qwen_cases import CASES, HAPPY, SAID, T1, T2, T3, WOMAN, wording
from torch import Tensor

from omni.engines.torch import PromptSlice, Step, StepResult, linear
from qwen3_tts.model import Talker
from qwen3_tts.prompts import Wording
from qwen3_tts.sampling import Rule, penalised

TOLERANCE = {"atol": 1e-4, "rtol": 0.0}


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


def embedded(model: Talker, found: Wording) -> Tensor:
    prompt = found.prompt
    tokens, codes = torch.from_numpy(prompt.tokens), torch.from_numpy(prompt.codes)
    return model.embed(PromptSlice(prompt, 0, len(tokens), tokens, codes))


def legal(model: Talker) -> list[int]:
    return [*range(model.config.codebook_size), model.config.talker.codec_eos_id]


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Whole-sequence attention, written plainly."""
    share = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(share, 1), v.repeat_interleave(share, 1)
    mixed = F.scaled_dot_product_attention(q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1), is_causal=True)
    return mixed.transpose(0, 1).reshape(len(q), -1)


class Recorded:
    """A model that notes its steps."""

    def __init__(self, model: Talker) -> None:
        self._model = model
        self.hidden: list[Tensor] = []
        self.inputs: list[Tensor] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def step(self, hidden: Tensor, step: Step, state: Any) -> StepResult:
        result = self._model.step(hidden, step, state)
        self.hidden.append(hidden.clone())
        self.inputs.append(result.embedding.clone())
        return result


def depth_logits(model: Talker, hidden: Tensor, codes: Tensor) -> Tensor:
    """Teacher-forced: ``(n, width)`` and ``(n, codebooks)`` to scores ``(n, codebooks - 1, size)``."""
    fed = [model.condition(hidden), *(model.depth_input(i, codes[:, i]) for i in range(model.codebooks - 1))]
    out = model.depth(torch.stack(fed, 1))[:, 1:]
    return torch.stack([linear(out[:, g], head) for g, head in enumerate(model.depth_heads)], 1)


@pytest.mark.parametrize(
    ("name", "text", "before", "after"),
    [
        ("text.cv_en.input_ids", T1, "_assistant", True),
        ("text.cv_zh.input_ids", T2, "_assistant", True),
        ("text.eos.input_ids", T3, "_assistant", True),
        ("text.ref.ids", SAID, "_assistant", False),
        ("text.instruct.ids", HAPPY, "_user", False),
        ("text.vd.instruct_ids", WOMAN, "_user", False),
    ],
)
def test_text_ids(builders, golden, name: str, text: str, before: str, after: bool) -> None:
    builder = builders["base"]
    ids = [*getattr(builder, before), *builder.ids(text), *builder._close, *(builder._assistant if after else [])]
    assert ids == golden[name].tolist()


@pytest.mark.parametrize("case", CASES)
def test_prompt(talkers, builders, golden, case: str) -> None:
    model = talkers[CASES[case][0]]
    found = wording(builders, golden, case)
    torch.testing.assert_close(embedded(model, found), golden[f"{case}.prompt_embeds"], **TOLERANCE)
    tail = found.tail or [model.config.tts_pad_id]
    torch.testing.assert_close(model.text[torch.tensor(tail)], golden[f"{case}.trailing_text"], **TOLERANCE)


@pytest.mark.parametrize("case", CASES)
def test_generation(talkers, builders, golden, meta, tools, greedily, case: str) -> None:
    model = talkers[CASES[case][0]]
    found = wording(builders, golden, case)
    info = meta["info"][case]
    seen = Recorded(model)
    penalty = 1.0 if case == "cv_en_norep" else 1.05
    params = greedily(info["tokens"], found.tail, repetition_penalty=penalty)
    codes, reason = tools.run(tools.engine(seen), found.prompt, params)

    # The reference drops the frame of the last token when a limit ends the speech.
    expected, tokens = golden[f"{case}.codes"], golden[f"{case}.group0_tokens"]
    assert reason == ("stop" if info["eos"] else "length")
    assert codes.shape[1] == (info["frames"] if info["eos"] else info["tokens"])
    assert np.array_equal(codes.T[: info["frames"]], expected)
    assert codes[0].tolist() == tokens.tolist()[: codes.shape[1]]
    if info["eos"]:
        assert tokens[-1] == model.config.talker.codec_eos_id

    hidden, inputs = torch.cat(seen.hidden), torch.cat(seen.inputs)
    torch.testing.assert_close(hidden[: info["frames"] + 1], golden[f"{case}.hidden"], **TOLERANCE)
    logits = golden[f"{case}.group0_logits"]
    torch.testing.assert_close(model.logits(hidden[: len(logits)]), logits[:, legal(model)], **TOLERANCE)
    steps = golden[f"{case}.step_embeds"]
    torch.testing.assert_close(inputs[: len(steps)], steps, **TOLERANCE)
    depth = golden[f"{case}.predictor_logits"]
    n = len(depth)
    torch.testing.assert_close(depth_logits(model, hidden[:n], expected[:n]), depth, **TOLERANCE)


def test_prefill_position_by_position(talkers, builders, golden) -> None:
    model = talkers["custom_voice"]
    x = embedded(model, wording(builders, golden, "cv_en"))
    hidden = model(x, torch.arange(len(x)), lambda _, q, k, v: causal(q, k, v))
    torch.testing.assert_close(hidden, golden["cv_en.prefill_hidden"], **TOLERANCE)
    torch.testing.assert_close(model.logits(hidden), golden["cv_en.prefill_logits"][:, legal(model)], **TOLERANCE)


def test_a_batch_equals_the_reference_and_single_runs(talkers, builders, golden, tools, greedily) -> None:
    model = talkers["custom_voice"]
    cases = ("cv_en", "cv_zh_dialect")
    seen = Recorded(model)
    engine = tools.engine(seen)
    found = [wording(builders, golden, case) for case in cases]
    sinks = [tools.submit(engine, f.prompt, greedily(26, f.tail)) for f in found]
    for row, (case, sink, f) in enumerate(zip(cases, sinks, found, strict=True)):
        codes, _ = sink.result()
        tokens = golden["cv_batch.group0_tokens"][row]
        assert codes[0].tolist() == tokens.tolist()[: codes.shape[1]]
        assert np.array_equal(codes.T[:25], golden[f"{case}.codes"][:25])
        real = golden["cv_batch.attention_mask"][row].bool()
        x = embedded(model, f)
        torch.testing.assert_close(x, golden["cv_batch.prompt_embeds_padded"][row][real], **TOLERANCE)
        # Here nothing is padded: a position is the place in the prompt.
        assert golden["cv_batch.prefill_position_ids"][row][real].tolist() == list(range(len(x)))
        assert golden["cv_batch.step1_position_ids"][row].item() == len(x)
        hidden = model(x, torch.arange(len(x)), lambda _, q, k, v: causal(q, k, v))[-1:]
        logits = golden["cv_batch.group0_logits_step0"][row : row + 1, legal(model)]
        torch.testing.assert_close(model.logits(hidden), logits, **TOLERANCE)


@pytest.mark.parametrize(
    ("name", "heard", "top_p"),
    [
        ("rule.probs_default", True, 1.0),
        ("rule.probs_t0.9_k50_p0.8_rep1.05", True, 0.8),
        ("rule.probs_first_token_default", False, 1.0),
    ],
)
def test_rules(talkers, golden, name: str, heard: bool, top_p: float) -> None:
    model = talkers["base"]
    allowed = legal(model)
    scores = golden["rule.logits"][allowed][None]
    seen = torch.zeros(1, model.config.codebook_size, dtype=torch.bool)
    if heard:
        seen[0, golden["rule.history"]] = True
    codes = penalised(scores[:, :-1], seen, torch.tensor([1.05]))
    end = scores[:, -1:] if heard else torch.full((1, 1), -torch.inf)
    values, ids = torch.cat((codes, end), 1).sort(descending=True)
    never = torch.tensor([False])
    p = Rule(never, torch.tensor([0.9]), torch.tensor([top_p]), torch.tensor([50.0])).probabilities(values)
    found = torch.zeros_like(p).scatter_(1, ids, p / p.sum())[0]
    expected = golden[name]
    torch.testing.assert_close(found, expected[allowed], atol=1e-6, rtol=0.0)
    assert expected.sum() == pytest.approx(expected[allowed].sum().item())
