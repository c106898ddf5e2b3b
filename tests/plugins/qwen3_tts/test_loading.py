"""Checkpoints that do not fit are refused with the name of what does not, before anything is served."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from omni import StageContext, WeightsError
from omni.plugins import Plugins
from qwen3_tts.codec.loading import load_decoder, load_encoder
from qwen3_tts.config import load_config
from qwen3_tts.loader import load_talker
from qwen3_tts.model import Talker
from qwen3_tts.origin import describe
from qwen3_tts.reference import ReferenceEncoder
from qwen3_tts.sizes import size_config
from qwen3_tts.speaker import load_speaker_encoder
from qwen3_tts.stages import Prepare
from qwen3_tts.tokenizer import QwenTokenizer

CPU = torch.device("cpu")


@pytest.fixture
def broken(folders, tmp_path) -> Path:
    """A checkpoint to break."""
    return Path(shutil.copytree(folders["base"], tmp_path / "ckpt"))


def edit(file: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    values = json.loads(file.read_text())
    change(values)
    file.write_text(json.dumps(values))


def talker(folder: Path) -> object:
    return load_talker(folder, device=CPU, dtype=torch.float32)


def speaker(folder: Path) -> object:
    config = load_config(folder).speaker
    assert config is not None
    return load_speaker_encoder(folder, config, CPU)


def decoder(folder: Path) -> object:
    return load_decoder(folder, CPU)


def encoder(folder: Path) -> object:
    return load_encoder(folder, CPU)


TENSORS = [
    (talker, "model.safetensors", "talker.model.layers.1.self_attn.q_norm.weight"),
    (talker, "model.safetensors", "talker.model.text_embedding.weight"),
    (talker, "model.safetensors", "talker.codec_head.weight"),
    (talker, "model.safetensors", "talker.code_predictor.lm_head.7.weight"),
    (talker, "model.safetensors", "talker.code_predictor.model.layers.0.mlp.down_proj.weight"),
    (talker, "model.safetensors", "talker.text_projection.linear_fc2.bias"),
    (speaker, "model.safetensors", "speaker_encoder.blocks.2.res2net_block.blocks.3.conv.weight"),
    (decoder, "speech_tokenizer/model.safetensors", "decoder.decoder.3.block.1.conv.weight"),
    (decoder, "speech_tokenizer/model.safetensors", "decoder.quantizer.rvq_rest.vq.layers.14._codebook.cluster_usage"),
    (encoder, "speech_tokenizer/model.safetensors", "encoder.downsample.conv.weight"),
    (encoder, "speech_tokenizer/model.safetensors", "encoder.encoder_transformer.layers.1.mlp.fc1.weight"),
]


@pytest.mark.parametrize("wrong", ["missing", "misshapen"])
@pytest.mark.parametrize(("load", "file", "name"), TENSORS)
def test_a_tensor_that_does_not_fit_is_named(broken, load, file: str, name: str, wrong: str) -> None:
    tensors = load_file(broken / file)
    if wrong == "missing":
        del tensors[name]
    else:
        tensors[name] = torch.cat((tensors[name], tensors[name]))
    save_file(tensors, broken / file)
    with pytest.raises(WeightsError, match=name.replace(".", r"\.")) as caught:
        load(broken)
    assert wrong == "missing" or "shape" in caught.value.message


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda c: c.update(model_type="qwen3"), "model_type"),
        (lambda c: c.update(tts_model_type="singer"), "tts_model_type"),
        (lambda c: c.update(tokenizer_type="qwen3_tts_tokenizer_25hz"), "tokenizer_type"),
        (lambda c: c.pop("speaker_encoder_config"), "speaker_encoder_config"),
        (lambda c: c["speaker_encoder_config"].update(enc_dim=5), "enc_dim"),
        (lambda c: c["speaker_encoder_config"].update(enc_channels=[16, 16, 8, 16, 40]), "enc_channels"),
        (lambda c: c.update(tts_pad_token_id=10_000), "text_vocab_size"),
        (lambda c: c["talker_config"].update(vocab_size=1100), "codes"),
        (lambda c: c["talker_config"].update(codec_eos_token_id=5), "codec track"),
        (lambda c: c["talker_config"].update(num_code_groups=8), "num_code_groups"),
        (lambda c: c["talker_config"].update(use_sliding_window=True), "use_sliding_window"),
        (lambda c: c["talker_config"].update(spk_is_dialect={"eric": "martian"}), "martian"),
        (lambda c: c["talker_config"].pop("head_dim"), "head_dim"),
    ],
)
def test_config_names_the_field(broken, change, word: str) -> None:
    edit(broken / "config.json", change)
    with pytest.raises(WeightsError, match=word):
        load_config(broken)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda c: c.update(model_type="encodec"), "model_type"),
        (lambda c: c.update(decode_upsample_rate=2000), "samples per frame"),
        (lambda c: c["decoder_config"].pop("codebook_dim"), "codebook_dim"),
        (lambda c: c["decoder_config"].update(num_key_value_heads=2), "num_key_value_heads"),
        (lambda c: c["decoder_config"].update(codebook_size=32), "codebook_size"),
        (lambda c: c["encoder_config"].update(use_causal_conv=False), "use_causal_conv"),
        (lambda c: c["encoder_config"].update(num_quantizers=8), "num_quantizers"),
    ],
)
def test_codec_config_names_the_field(broken, change, word: str) -> None:
    edit(broken / "speech_tokenizer" / "config.json", change)
    with pytest.raises(WeightsError, match=word):
        decoder(broken)


@pytest.mark.parametrize(
    "file", ["config.json", "vocab.json", "merges.txt", "speech_tokenizer/config.json", "generation_config.json"]
)
def test_files_missing_or_broken(broken, file: str) -> None:
    def load() -> None:
        describe.cache_clear()
        describe(broken, None)
        decoder(broken)

    (broken / file).write_text("no json\0")
    with pytest.raises(WeightsError, match=file.rpartition("/")[2]):
        load()
    (broken / file).unlink()
    if file == "generation_config.json":
        load()
        return
    with pytest.raises(WeightsError, match=file.rpartition("/")[2]):
        load()


def test_a_vocabulary_larger_than_the_weights(broken) -> None:
    edit(broken / "vocab.json", lambda vocabulary: vocabulary.update(extra=544))
    describe.cache_clear()
    with pytest.raises(WeightsError, match="545 ids"):
        describe(broken, None)


def test_a_checkpoint_is_asked_for_its_voice_encoders_only_where_it_clones(folders, tmp_path) -> None:
    folder = Path(shutil.copytree(folders["custom_voice"], tmp_path / "ckpt"))
    stage = ReferenceEncoder(ReferenceEncoder.Options(), context(folder))
    (folder / "speech_tokenizer" / "model.safetensors").unlink()
    stage.load()
    base = Path(shutil.copytree(folders["base"], tmp_path / "base"))
    (base / "speech_tokenizer" / "model.safetensors").unlink()
    stage = ReferenceEncoder(ReferenceEncoder.Options(), context(base))
    with pytest.raises(WeightsError, match="speech_tokenizer"):
        stage.load()


def context(folder: Path | None) -> StageContext:
    return StageContext(Plugins.load().recipe("qwen3-tts-0.6b-customvoice"), "stage", weights=folder)


def test_without_weights() -> None:
    with pytest.raises(WeightsError, match="--weights"):
        Prepare(Prepare.Options(), context(None)).load()


def test_bfloat16_weights_are_the_rounded_ones(folders) -> None:
    full = load_talker(folders["base"], device=CPU, dtype=torch.float32)
    half = load_talker(folders["base"], device=CPU, dtype=torch.bfloat16)
    assert half.text.dtype == torch.bfloat16
    torch.testing.assert_close(half.text.float(), full.text, atol=2e-2, rtol=2e-2)
    assert torch.equal(half.codec, full.codec.bfloat16())


@pytest.mark.parametrize("size", ["tiny", "small", "0.6b", "1.7b"])
@pytest.mark.parametrize("kind", ["base", "custom_voice", "voice_design"])
def test_sizes_of_random_models(size, kind) -> None:
    config = size_config(size, kind)
    assert config.kind == kind
    parameters = {"small": (150e6, 250e6), "0.6b": (0.7e9, 0.95e9), "1.7b": (1.7e9, 2.0e9)}.get(size)
    if parameters and kind == "base":
        model = Talker(config, device=torch.device("meta"), dtype=torch.float32)
        assert parameters[0] < sum(p.numel() for p in model.parameters()) < parameters[1]


def test_control_tokens_are_text(folders) -> None:
    tokenizer = QwenTokenizer.load(folders["base"])
    special = json.loads((folders["base"] / "tokenizer_config.json").read_text())["added_tokens_decoder"]
    for text in ("<|im_end|>", "<|im_start|>assistant\n", "<tts_pad>", "<|endoftext|>"):
        assert not {str(i) for i in tokenizer.encode(text)} & set(special)
        assert tokenizer._tokenizer.decode(tokenizer.encode(text)) == text
