"""The engine's talker against one written plainly, also in sizes that the golden checkpoint does not have; and that
its steps depend on nothing but the request."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from naive import NaiveTalker, wider

from omni import BadRequest
from omni.engines.base import Prompt, SamplingParams
from omni.engines.torch import PromptSlice
from qwen3_tts.config import load_config
from qwen3_tts.loader import load_talker
from qwen3_tts.model import SPEAKER, Talker
from qwen3_tts.prompts import PromptBuilder, Reference
from qwen3_tts.source import TalkerSource
from qwen3_tts.tokenizer import QwenTokenizer

TEXT = "Hello, this is a test of the speech system."


@pytest.fixture(scope="module")
def wide(folders, tmp_path_factory) -> Path:
    return wider(folders["custom_voice"], tmp_path_factory.mktemp("wide") / "ckpt", 3)


@pytest.fixture(scope="module")
def model(wide) -> Talker:
    return load_talker(wide, device=torch.device("cpu"), dtype=torch.float32)


@pytest.fixture(scope="module")
def builder(wide) -> PromptBuilder:
    return PromptBuilder(load_config(wide), QwenTokenizer.load(wide))


def test_the_plain_one_equals_the_reference(folders, builders, golden) -> None:
    found = builders["custom_voice"].build(TEXT, whole=False, speaker="ryan", language="english")
    plain = NaiveTalker(folders["custom_voice"])
    codes = plain.speak(found.prompt.tokens, found.prompt.codes, found.tail, 10)
    assert np.array_equal(codes.numpy(), golden["cv_en_stream.codes"][:10])


@pytest.mark.parametrize("how", ["whole", "stream", "cloned"])
def test_a_narrower_predictor(wide, model, builder, tools, greedily, how: str) -> None:
    vector = np.random.default_rng(0).standard_normal(40).astype(np.float32)
    fields = {"speaker": "eric"}
    if how == "cloned":
        spoken = np.random.default_rng(1).integers(0, 64, (16, 6))
        fields = {"vector": vector, "reference": Reference("She said so.", spoken)}
    found = builder.build(TEXT, whole=how == "whole", instructions="Very happy.", **fields)
    codes, _ = tools.run(tools.engine(model), found.prompt, greedily(12, found.tail))
    expected = NaiveTalker(wide).speak(
        found.prompt.tokens, found.prompt.codes, found.tail, 12, torch.from_numpy(vector)
    )
    assert model.project is not None
    assert np.array_equal(codes.T, expected.numpy())


def sampled(frames: int, seed: int, tail: list[int], **extra: float) -> SamplingParams:
    return SamplingParams(
        max_new_tokens=frames,
        temperature=1.2,
        top_k=40,
        seed=seed,
        repetition_penalty=1.3,
        extra={"tail": tail, **extra},
    )


def test_a_seed_repeats_beside_others_and_after_preemption(model, builder, tools) -> None:
    """Few pages make requests give theirs up and go on later: what they remember is made again from their codes."""
    texts = [f"{TEXT} Number {i}." for i in range(6)]
    found = [builder.build(text, whole=i % 2 == 0, speaker="ryan") for i, text in enumerate(texts)]
    params = [sampled(30, 50 + i, f.tail, subtalker_top_k=3 + i) for i, f in enumerate(found)]
    alone = tools.engine(model)
    expected = [tools.run(alone, f.prompt, p)[0] for f, p in zip(found, params, strict=True)]
    crowded = tools.engine(model, kv_tokens=160, page_size=8, max_running=4, prefill_chunk=16)
    sinks = [tools.submit(crowded, f.prompt, p) for f, p in zip(found, params, strict=True)]
    for sink, codes in zip(sinks, expected, strict=True):
        assert np.array_equal(sink.result()[0], codes)
    assert crowded.stats().preemptions_total > 0


def test_greedy_beside_sampled_requests(model, builder, tools, greedily) -> None:
    found = builder.build(TEXT, whole=True, speaker="ryan")
    engine = tools.engine(model)
    expected, _ = tools.run(engine, found.prompt, greedily(20, []))
    others = [tools.submit(engine, found.prompt, sampled(25, i, [])) for i in range(3)]
    codes, _ = tools.run(engine, found.prompt, greedily(20, []))
    assert np.array_equal(codes, expected)
    assert len({sink.result()[0].tobytes() for sink in others}) == 3


def test_each_kind_of_code_has_its_own_numbers(model, builder, tools) -> None:
    """With one of the two greedy, its codes follow from the others: the same first frame whatever the seed."""
    found = builder.build(TEXT, whole=True, speaker="ryan")
    engine = tools.engine(model)

    def frames(**extra: float) -> np.ndarray:
        return np.stack([tools.run(engine, found.prompt, sampled(3, seed, [], **extra))[0] for seed in range(8)])

    first = frames(temperature=0.0)
    assert len({codes[0, 0] for codes in first}) == 1
    assert len({codes[1:, 0].tobytes() for codes in first}) > 1
    others = frames(subtalker_temperature=0.0)
    assert len({codes[0, 0] for codes in others}) > 1
    by_first = {}
    for codes in others:
        assert by_first.setdefault(codes[0, 0], codes[1:, 0].tobytes()) == codes[1:, 0].tobytes()


def test_another_voice_misses_the_prefix_cache(model, builder, tools, greedily) -> None:
    engine = tools.engine(model, page_size=8)
    text = TEXT * 3
    plain = builder.build(text, whole=True, speaker="ryan")
    tools.run(engine, plain.prompt, greedily(2, []))
    for change, hits in (("none", True), ("vector", False)):
        vector = np.ones(40, np.float32) if change == "vector" else None
        found = builder.build(text, whole=True, speaker=None if vector is not None else "ryan", vector=vector)
        before = engine.stats().prefix_hit_tokens_total
        first, _ = tools.run(engine, found.prompt, greedily(2, []))
        assert (engine.stats().prefix_hit_tokens_total > before) == hits
        cold, _ = tools.run(tools.engine(model), found.prompt, greedily(2, []))
        assert np.array_equal(first, cold)
    other = builder.build(text, whole=True, vector=np.full(40, 2, np.float32))
    before = engine.stats().prefix_hit_tokens_total
    tools.run(engine, other.prompt, greedily(2, []))
    assert engine.stats().prefix_hit_tokens_total == before


def test_frames_are_embedded_as_the_step_did(model, builder) -> None:
    """A preempted request goes on from its columns: the same numbers, bit by bit."""
    codes = torch.randint(0, 64, (16, 5), generator=torch.Generator().manual_seed(0))
    tokens = torch.tensor([7, 9, 504, 504, 3])
    prompt = Prompt(tokens=tokens, codes=codes)
    with torch.inference_mode():
        found = model.embed(PromptSlice(prompt, 0, 5, tokens, codes))
        assert torch.equal(found, model.text[tokens] + model._frame(codes.t()))


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"tokens": np.array([600, 1])}, "prompt"),
        ({"codes": None}, "codes"),
        ({"codes": np.full((16, 2), 1090)}, "codes"),
        ({"codes": np.vstack([np.full((1, 2), 5), np.full((15, 2), 64)])}, "codes"),
        ({"embeds": {SPEAKER: np.zeros(40, np.float32)}}, "embeds"),
        ({"embeds": {"other": np.zeros(40, np.float32)}}, "embeds"),
        ({"codes": np.vstack([np.full((1, 2), 1089), np.zeros((15, 2), int)])}, "embeds"),
    ],
)
def test_impossible_prompts(wide, model, change, param: str) -> None:
    fields = {"tokens": np.array([3, 4]), "codes": np.zeros((16, 2), np.int64), **change}
    for checker in (model, TalkerSource(device="cpu", dtype="float32", folder=str(wide))):
        with pytest.raises(BadRequest) as caught:
            checker.check(Prompt(**fields), SamplingParams(max_new_tokens=1))
        assert caught.value.param == param


@pytest.mark.parametrize("extra", [{"volume": 1}, {"tail": [9999]}, {"tail": [1] * 40_000}])
def test_impossible_parameters(model, extra) -> None:
    prompt = Prompt(tokens=np.array([3]), codes=np.zeros((16, 1), np.int64))
    with pytest.raises(BadRequest) as caught:
        model.check(prompt, SamplingParams(max_new_tokens=1, extra=extra))
    assert caught.value.param in extra
