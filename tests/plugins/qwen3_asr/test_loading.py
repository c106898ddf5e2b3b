"""Checkpoints that are not what they should be: every error names what is wrong. And random weights."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from omni import Joined, Recipe, StageContext, WeightsError
from omni.config import configure
from omni.engines.torch import LayerStack
from omni.errors import ConfigError
from omni.plugins import Plugins
from qwen3_asr.languages import ALIGNED
from qwen3_asr.loader import load_aligner, load_asr, load_encoder, open_aligner, open_asr, random_encoder
from qwen3_asr.messages import Ending, Span
from qwen3_asr.sizes import SIZES
from qwen3_asr.source import AsrSource
from qwen3_asr.stages import AudioEncoderOptions, AudioEncoderStage, device_of, dtype_of
from qwen3_asr.transcript import SpanText

CPU = {"device": torch.device("cpu"), "dtype": torch.float32}


@pytest.fixture
def copy(folders, tmp_path) -> Callable[..., Path]:
    """``copy(kind, config=..., tensors=...)``: a checkpoint, changed by functions."""

    def make(
        kind: str,
        config: Callable[[dict[str, Any]], object] | None = None,
        tensors: Callable[[dict[str, torch.Tensor]], object] | None = None,
    ) -> Path:
        folder = tmp_path / kind
        shutil.copytree(getattr(folders, kind), folder)
        if config is not None:
            values = json.loads((folder / "config.json").read_text())
            config(values)
            (folder / "config.json").write_text(json.dumps(values))
        if tensors is not None:
            loaded = load_file(folder / "model.safetensors")
            tensors(loaded)
            save_file(loaded, folder / "model.safetensors")
        return folder

    return make


def audio(values: dict[str, Any]) -> Any:
    return values["thinker_config"]["audio_config"]


def text(values: dict[str, Any]) -> Any:
    return values["thinker_config"]["text_config"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda v: v.update(model_type="whisper"), ["model_type", "qwen3_asr"]),
        (lambda v: v.pop("thinker_config"), ["thinker_config"]),
        (lambda v: audio(v).update(n_window=100), ["thinker_config.audio_config.n_window"]),
        (lambda v: audio(v).update(num_mel_bins=80), ["num_mel_bins"]),
        (lambda v: audio(v).update(encoder_attention_heads=5), ["multiple of encoder_attention_heads"]),
        (lambda v: audio(v).update(n_window_infer=850), ["multiple of 100"]),
        (lambda v: audio(v).update(output_dim=32), ["output_dim is 32", "hidden_size 48"]),
        (lambda v: text(v).update(attention_bias=True), ["attention_bias"]),
        (lambda v: text(v).update(num_hidden_layers=0), ["num_hidden_layers"]),
        (lambda v: text(v).update(vocab_size=600), ["618", "600"]),
        (lambda v: v["thinker_config"].update(audio_token_id=1), ["audio_token_id 1"]),
        (lambda v: v["thinker_config"].update(audio_token_id=9999), ["audio_token_id", "640"]),
    ],
)
def test_a_config_that_does_not_fit(copy, change, words) -> None:
    with pytest.raises(WeightsError) as caught:
        open_asr(copy("asr", change))
    for word in words:
        assert word in caught.value.message


@pytest.mark.parametrize("content", ["", "[]", "{"])
def test_a_config_that_is_none(copy, content) -> None:
    folder = copy("asr")
    (folder / "config.json").write_text(content)
    with pytest.raises(WeightsError, match=r"config\.json"):
        open_asr(folder)


def test_the_aligner_is_no_recogniser_and_the_other_way_round(folders) -> None:
    with pytest.raises(WeightsError, match=r"qwen3_forced_aligner.*--set aligner\.weights"):
        load_asr(folders.aligner, **CPU)
    with pytest.raises(WeightsError, match="not of a forced aligner"):
        load_aligner(folders.asr, **CPU)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda v: v.pop("timestamp_token_id"), ["timestamp_token_id"]),
        (lambda v: v.pop("timestamp_segment_time"), ["timestamp_segment_time"]),
        (lambda v: v["thinker_config"].pop("classify_num"), ["classify_num"]),
        (lambda v: v.update(timestamp_token_id=3), ["timestamp_token_id 3"]),
    ],
)
def test_an_aligners_config_that_does_not_fit(copy, change, words) -> None:
    with pytest.raises(WeightsError) as caught:
        open_aligner(copy("aligner", change))
    for word in words:
        assert word in caught.value.message


AUDIO_NAMES = (
    "thinker.audio_tower.conv2d2.weight",
    "thinker.audio_tower.conv_out.weight",
    "thinker.audio_tower.layers.1.self_attn.k_proj.bias",
    "thinker.audio_tower.layers.0.final_layer_norm.weight",
    "thinker.audio_tower.proj2.bias",
)
TEXT_NAMES = (
    "thinker.model.embed_tokens.weight",
    "thinker.model.layers.2.self_attn.q_norm.weight",
    "thinker.model.layers.1.mlp.up_proj.weight",
    "thinker.model.norm.weight",
)


@pytest.mark.parametrize("name", AUDIO_NAMES)
def test_a_tensor_of_the_encoder_that_is_missing_or_misshapen(copy, folders, name) -> None:
    config, _ = open_asr(folders.asr)
    with pytest.raises(WeightsError, match=f"missing.*{name}"):
        load_encoder(copy("asr", tensors=lambda t: t.pop(name)), config.audio, **CPU)
    with pytest.raises(WeightsError, match=f"{name} has shape"):
        load_encoder(copy("aligner", tensors=lambda t: t.update({name: torch.zeros(3)})), config.audio, **CPU)


@pytest.mark.parametrize("name", TEXT_NAMES)
def test_a_tensor_of_the_language_model_that_is_missing_or_misshapen(copy, folders, name) -> None:
    with pytest.raises(WeightsError, match=f"missing.*{name}"):
        load_asr(copy("asr", tensors=lambda t: t.pop(name)), **CPU)
    with pytest.raises(WeightsError, match=f"{name} has shape"):
        load_aligner(copy("aligner", tensors=lambda t: t.update({name: torch.zeros(3)})), **CPU)


def test_a_head_of_its_own_is_needed_unless_it_is_tied(copy) -> None:
    load_asr(copy("asr", tensors=lambda t: t.pop("thinker.lm_head.weight")), **CPU)
    with pytest.raises(WeightsError, match=r"missing.*thinker\.lm_head\.weight"):
        load_aligner(copy("aligner", tensors=lambda t: t.pop("thinker.lm_head.weight")), **CPU)


def test_an_untied_head_is_read(copy, model) -> None:
    def untie(values: dict[str, Any]) -> None:
        text(values)["tie_word_embeddings"] = False

    other, _ = load_asr(copy("asr", untie, lambda t: t.update({"thinker.lm_head.weight": torch.ones(640, 48)})), **CPU)
    hidden = torch.rand(2, 48)
    with torch.inference_mode():
        assert torch.allclose(other.logits(hidden), hidden.sum(1, keepdim=True).expand(2, 640), atol=1e-4)
        assert not torch.allclose(model.logits(hidden), other.logits(hidden), atol=1e-2)


def test_shards(copy, folders, golden, encoder) -> None:
    folder = copy("asr")
    loaded = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(loaded)
    parts = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, own in parts.items():
        save_file({name: loaded[name] for name in own}, folder / file)
    index = {"weight_map": {name: file for file, own in parts.items() for name in own}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    config, _ = open_asr(folder)
    again = load_encoder(folder, config.audio, **CPU)
    assert torch.equal(again.encode([golden["w1.mel"]])[0], encoder.encode([golden["w1.mel"]])[0])
    load_asr(folder, **CPU)


def test_weights_in_bfloat16(copy, golden, encoder) -> None:
    folder = copy("asr", tensors=lambda t: t.update({name: value.bfloat16() for name, value in t.items()}))
    config, _ = open_asr(folder)
    found = load_encoder(folder, config.audio, **CPU).encode([golden["w2.mel"]])[0]
    assert (found - encoder.encode([golden["w2.mel"]])[0]).abs().max() < 0.1
    half = load_encoder(folder, config.audio, device=CPU["device"], dtype=torch.bfloat16)
    assert half.encode([golden["w2.mel"]])[0].dtype == torch.bfloat16


# Random weights -------------------------------------------------------------------------------------------------------


def test_a_random_aligner_gives_times(drive) -> None:
    """Of a Japanese text too, the words of which are nagisa's."""
    recipe = Plugins.load().recipe("qwen3-asr-random-timestamps")
    only = recipe.model_copy(update={"stages": (recipe.stage("aligner"),)})
    stage = drive.load_stages(only, None)["aligner"]
    span = Span(position=0, last=True, start=0.0, seconds=2.5, mel=np.zeros((128, 250), np.float32))
    ending = Ending(True, 0.0, 2.5, "今日は ok", timed=True, words=True)
    text = SpanText(position=0, language="ja", ending=ending)
    (found,) = stage.encode([Joined(parts={"audio": span, "texts": text})])
    assert [unit.word for unit in found.units] == ["今日", "は", "ok"]
    times = [time for unit in found.units for time in (unit.start, unit.stop)]
    assert times == sorted(times)
    assert times[-1] > 0


def test_random_weights_follow_from_their_seed() -> None:
    config, tokenizer = SIZES["tiny"].build()
    assert tokenizer.size <= config.text.vocab_size
    mel = np.random.default_rng(0).normal(size=(128, 250)).astype(np.float32)
    found = [random_encoder(config.audio, seed, **CPU).encode([mel])[0] for seed in (0, 0, 1)]
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])
    assert 0.1 < found[0].std() < 10


def test_a_source_describes_the_model_that_it_builds(folders) -> None:
    for fields in ({"folder": str(folders.asr)}, {"random": "tiny"}):
        source = AsrSource(device="cpu", dtype="float32", **fields)
        built = source.build(LayerStack, device=torch.device("cpu"))
        shape = source.shape()
        assert (shape.codebooks, shape.max_positions) == (built.codebooks, built.max_positions)
        assert shape.stack.kv == built.kv


@pytest.mark.parametrize(("size", "millions"), [("small", (180, 220)), ("0.6b", (780, 786)), ("1.7b", (2034, 2042))])
def test_sizes_are_as_large_as_they_say(size, millions) -> None:
    config, _ = SIZES[size].build()
    meta = {"device": torch.device("meta"), "dtype": torch.float32}
    from qwen3_asr.encoder import AudioEncoder
    from qwen3_asr.model import TextModel

    parts = AudioEncoder(config.audio, **meta), TextModel(config.text, make_stack=_without_rope, **meta)
    count = sum(parameter.numel() for part in parts for parameter in set(part.parameters())) / 1e6
    assert millions[0] < count < millions[1]


def _without_rope(dims: Any, **where: Any) -> LayerStack:
    from dataclasses import replace

    return LayerStack(replace(dims, max_positions=1), **where)


# Options and recipes --------------------------------------------------------------------------------------------------


def test_devices_and_dtypes() -> None:
    with pytest.raises(ConfigError, match="device"):
        device_of("toaster")
    assert dtype_of("auto", torch.device("cpu")) == torch.float32
    assert dtype_of("auto", torch.device("cuda")) == torch.bfloat16
    assert dtype_of("float16", torch.device("cpu")) == torch.float16


def test_weights_are_needed() -> None:
    recipe = Plugins.load().recipe("qwen3-asr-0.6b")
    with pytest.raises(WeightsError, match="--weights"):
        AudioEncoderStage(AudioEncoderOptions(), StageContext(recipe, "encoder")).load()


def test_recipes() -> None:
    recipes: dict[str, Recipe] = {name: r for name, r in Plugins.load().recipes.items() if name.startswith("qwen3-asr")}
    assert set(recipes) == {f"qwen3-asr-{s}{t}" for s in ("0.6b", "1.7b", "random") for t in ("", "-timestamps")}
    for name, recipe in recipes.items():
        timed = name.endswith("timestamps")
        assert recipe.task.timestamps == (("segment", "word") if timed else ())
        assert set(recipe.task.timestamp_languages or ()) == (set(ALIGNED) if timed else set())
        assert set(recipe.all_weights()) == ({None, "aligner"} if timed and "random" not in name else {None})
        assert all(recipes[variant].task.timestamps for variant in recipe.variants)
        assert bool(recipe.variants) != timed


def test_the_recipe_with_times_has_a_short_name_and_is_named_where_times_are_missing() -> None:
    plugins = Plugins.load()
    assert plugins.recipe("qwen3-asr-timestamps").name == "qwen3-asr-0.6b-timestamps"
    with pytest.raises(ConfigError, match=r"see the recipe 'qwen3-asr-0\.6b-timestamps'"):
        configure([plugins.recipe("qwen3-asr-0.6b")], sets=["aligner.weights=x"])
    (config,) = configure([plugins.recipe("qwen3-asr-timestamps")], sets=["aligner.weights=x"])
    assert config.text("aligner.weights") == "x"


def test_listing_is_light() -> None:
    code = "import json, sys, qwen3_asr; qwen3_asr.omni_recipes(); print(json.dumps([*sys.modules]))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "tokenizers", "safetensors", "av"} & set(json.loads(ran.stdout))
