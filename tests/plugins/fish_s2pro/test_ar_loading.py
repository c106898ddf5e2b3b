"""Checkpoints of other sizes and layouts, and errors that name what is wrong."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from fish_s2pro.config import parse_config
from fish_s2pro.loader import load_ar, random_ar
from omni.engines.base import SamplingParams
from omni.errors import WeightsError

CPU = torch.device("cpu")


def load(folder):
    return load_ar(folder, device=CPU, dtype=torch.float32)[0]


@pytest.fixture
def copy(ckpt, tmp_path):
    """``copy(change_tensors, change_config)``: the tiny checkpoint as one changed file."""

    def make(tensors=lambda t: None, config=lambda c: None):
        found = {}
        for shard in ckpt.glob("model-*.safetensors"):
            found.update(load_file(shard))
        tensors(found)
        values = json.loads((ckpt / "config.json").read_text())
        config(values)
        save_file(found, tmp_path / "model.safetensors")
        (tmp_path / "config.json").write_text(json.dumps(values))
        shutil.copy(ckpt / "tokenizer.json", tmp_path)
        return tmp_path

    return make


def same(a, b) -> bool:
    """Also where an engine has packed the one's weights already."""
    pairs = zip(a.parameters(), b.parameters(), strict=True)
    return all(torch.equal(*(x.to_dense() if x.is_mkldnn else x for x in pair)) for pair in pairs)


def test_one_file_and_shards_give_the_same(model, copy) -> None:
    assert same(load(copy()), model)


def test_split_projections_are_joined(model, copy) -> None:
    def split(tensors) -> None:
        for name in [n for n in tensors if n.endswith("attention.wqkv.weight")]:
            for letter, part in zip("qkv", tensors.pop(name).split([128, 64, 64]), strict=True):
                tensors[name.replace("wqkv", f"w{letter}")] = part.contiguous()

    assert same(load(copy(split)), model)


def test_head_of_its_own(model, copy) -> None:
    head = torch.randn(640, 64).bfloat16()
    folder = copy(
        lambda t: t.update({"text_model.model.output.weight": head}),
        lambda c: c["text_config"].update(tie_word_embeddings=False),
    )
    assert torch.equal(load(folder).head[:128], head[471:599].float())


def test_everything_the_config_can_say(copy, tools) -> None:
    """Another width of the fast AR, its own q/k norm, biases, other counts of codes; grouped heads of one."""

    def config(c) -> None:
        c["text_config"].update(attention_qkv_bias=True, attention_o_bias=True, attention_qk_norm=False)
        c["audio_decoder_config"].update(
            dim=40, n_head=5, n_local_heads=1, head_dim=8, n_layer=3, attention_qk_norm=True
        )
        c["audio_decoder_config"].update(num_codebooks=7, vocab_size=96, intermediate_size=56)

    generator = torch.Generator().manual_seed(0)

    def tensors(t) -> None:
        for name in [n for n in t if n.startswith("audio_decoder.") or n.endswith("_norm.weight")]:
            if name.startswith("audio_decoder.") or ".attention." in name:
                del t[name]

        def put(name: str, *shape: int) -> None:
            t[name] = torch.randn(*shape, generator=generator) * (0.5 if len(shape) == 1 else shape[-1] ** -0.5)

        for i in range(3):
            slow, fast = f"text_model.model.layers.{i}.", f"audio_decoder.layers.{i}."
            put(slow + "attention.wqkv.bias", 256)
            put(slow + "attention.wo.bias", 64)
            for name, shape in {
                "attention_norm": (40,),
                "ffn_norm": (40,),
                "attention.wqkv": (56, 40),
                "attention.wo": (40, 40),
                "attention.q_norm": (8,),
                "attention.k_norm": (8,),
                "feed_forward.w1": (56, 40),
                "feed_forward.w3": (56, 40),
                "feed_forward.w2": (40, 56),
            }.items():
                put(f"{fast}{name}.weight", *shape)
        put("audio_decoder.codebook_embeddings.weight", 7 * 96, 64)
        put("audio_decoder.embeddings.weight", 96, 40)
        put("audio_decoder.output.weight", 96, 40)
        put("audio_decoder.norm.weight", 40)
        put("audio_decoder.project_in.weight", 40, 64)
        put("audio_decoder.project_in.bias", 40)

    folder = copy(tensors, config)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["added_tokens"] = [t for t in tokenizer["added_tokens"] if t["id"] < 471 + 96]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    model = load(folder)
    assert model.config.semantic_end == 566
    values = torch.randint(0, 96, (8, 20), generator=generator)
    values[0, 5:12] += 471
    params = SamplingParams(max_new_tokens=10, temperature=1.0, seed=1)
    codes, _ = tools.run(tools.engine(model), values, params)
    assert codes.shape == (7, 10)
    assert codes.max() < 96
    # The project's bias is used: without it other codes come out.
    model.project_bias.zero_()
    other, _ = tools.run(tools.engine(model), values, params)
    assert (codes != other).any()


@pytest.mark.parametrize(
    "name",
    [
        "text_model.model.layers.1.attention.q_norm.weight",
        "audio_decoder.layers.0.feed_forward.w3.weight",
        "audio_decoder.output.weight",
    ],
)
def test_missing_and_misshapen_tensors_are_named(copy, name) -> None:
    with pytest.raises(WeightsError, match=name):
        load(copy(lambda t: t.pop(name)))
    with pytest.raises(WeightsError, match=name):
        load(copy(lambda t: t.update({name: torch.zeros(3, 3)})))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda c: c.update(model_type="llama"), "model_type"),
        (lambda c: c["text_config"].pop("dim"), r"text_config\.dim"),
        (lambda c: c["text_config"].update(use_moe=True), r"text_config\.use_moe"),
        (lambda c: c["text_config"].update(n_layer=0), r"text_config\.n_layer"),
        (lambda c: c["audio_decoder_config"].pop("num_codebooks"), "num_codebooks"),
        (lambda c: c.update(eos_token_id=640), "vocabulary"),
        (lambda c: c["text_config"].update(vocab_size=500), "vocabulary"),
        (lambda c: c["text_config"].update(vocab_size=620), "embeddings"),
    ],
)
def test_config_that_does_not_fit_is_refused(copy, change, named) -> None:
    with pytest.raises(WeightsError, match=named):
        load(copy(config=change))


def test_files_that_are_not_there(ckpt, tmp_path) -> None:
    for name in ("tokenizer.json", "config.json", "safetensors"):
        with pytest.raises(WeightsError, match=name):
            load(tmp_path)
        if name != "safetensors":
            shutil.copy(ckpt / name, tmp_path)


def test_fast_fields_that_are_absent_are_the_slow_ones(ckpt) -> None:
    values = json.loads((ckpt / "config.json").read_text())
    for name in ("dim", "n_head", "n_local_heads", "head_dim", "intermediate_size", "attention_qk_norm"):
        del values["audio_decoder_config"][name]
    config = parse_config(values)
    assert config.fast == config.slow


def test_random_weights(model, tools, golden) -> None:
    random = random_ar(model.config, 3, device=CPU, dtype=torch.float32)
    assert same(random, random_ar(model.config, 3, device=CPU, dtype=torch.float32))
    params = SamplingParams(max_new_tokens=20, temperature=1.0, seed=1)
    codes, _ = tools.run(tools.engine(random), golden["prompt.plain.0.values"], params)
    assert len({tuple(c) for c in codes.T.tolist()}) > 1
    hidden = random.forward(random.embeddings[:5], torch.arange(5), lambda i, q, k, v: q.reshape(5, -1))
    assert torch.isfinite(hidden).all()
