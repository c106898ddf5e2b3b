"""Weights from a folder in the Hub's layout, or random ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from omni.engines.torch import Checkpoint, DecoderLayer, LayerStack, StackFactory
from omni.errors import WeightsError
from qwen3_asr.aligner import Aligner
from qwen3_asr.config import AlignerConfig, AsrConfig, AudioSection, parse_aligner, parse_asr, read_object
from qwen3_asr.encoder import AudioEncoder
from qwen3_asr.model import AsrModel, TextModel
from qwen3_asr.tokenizer import AUDIO_PAD, END_OF_TEXT, IM_END, TIMESTAMP, AsrTokenizer

_AUDIO, _TEXT, _HEAD = "thinker.audio_tower", "thinker.model", "thinker.lm_head.weight"


def open_asr(folder: Path) -> tuple[AsrConfig, AsrTokenizer]:
    """Sizes and tokenizer of a recogniser. Raises :class:`WeightsError`."""
    tokenizer = AsrTokenizer.load(folder)
    config = parse_asr(read_object(folder / "config.json"), (tokenizer.id(IM_END), tokenizer.id(END_OF_TEXT)))
    _check_vocabulary(config, tokenizer)
    return config, tokenizer


def open_aligner(folder: Path) -> tuple[AlignerConfig, AsrTokenizer]:
    """Sizes and tokenizer of a forced aligner. Raises :class:`WeightsError`."""
    tokenizer = AsrTokenizer.load(folder)
    config = parse_aligner(read_object(folder / "config.json"))
    _check_vocabulary(config, tokenizer)
    if tokenizer.id(TIMESTAMP) != config.timestamp_id:
        raise WeightsError(f"config.json says timestamp_token_id {config.timestamp_id}, the tokenizer differs")
    return config, tokenizer


def _check_vocabulary(config: AsrConfig | AlignerConfig, tokenizer: AsrTokenizer) -> None:
    if tokenizer.size > config.text.vocab_size:
        raise WeightsError(f"the tokenizer has {tokenizer.size} ids, the weights have {config.text.vocab_size}")
    if tokenizer.id(AUDIO_PAD) != config.audio_pad_id:
        raise WeightsError(f"config.json says audio_token_id {config.audio_pad_id}, the tokenizer differs")


# Names ----------------------------------------------------------------------------------------------------------------


def _text_layer(index: int, layer: DecoderLayer) -> Iterator[tuple[str, Tensor]]:
    """Checkpoint names of a decoder layer, and where each goes."""
    d, prefix = layer.dims, f"{_TEXT}.layers.{index}"
    sizes = [d.heads * d.head_dim, d.kv_heads * d.head_dim, d.kv_heads * d.head_dim]
    for name, part in zip("qkv", torch.split(layer.wqkv, sizes), strict=True):
        yield f"{prefix}.self_attn.{name}_proj.weight", part
    assert layer.q_norm is not None
    assert layer.k_norm is not None
    yield f"{prefix}.self_attn.q_norm.weight", layer.q_norm
    yield f"{prefix}.self_attn.k_norm.weight", layer.k_norm
    yield f"{prefix}.self_attn.o_proj.weight", layer.wo
    yield f"{prefix}.input_layernorm.weight", layer.attention_norm
    yield f"{prefix}.post_attention_layernorm.weight", layer.ffn_norm
    yield f"{prefix}.mlp.gate_proj.weight", layer.w13[: d.ffn]
    yield f"{prefix}.mlp.up_proj.weight", layer.w13[d.ffn :]
    yield f"{prefix}.mlp.down_proj.weight", layer.w2


def _text_targets(model: TextModel) -> Iterator[tuple[str, Tensor]]:
    """All but the decoder layers."""
    yield f"{_TEXT}.embed_tokens.weight", model.embeddings
    yield f"{_TEXT}.norm.weight", model.stack.norm
    if model.head is not model.embeddings:
        yield _HEAD, model.head


def _audio_targets(encoder: AudioEncoder) -> Iterator[tuple[str, Tensor]]:
    for number, (kernel, bias) in enumerate(zip(encoder.kernels, encoder.kernel_biases, strict=True), 1):
        yield f"{_AUDIO}.conv2d{number}.weight", kernel
        yield f"{_AUDIO}.conv2d{number}.bias", bias
    yield f"{_AUDIO}.conv_out.weight", encoder.conv_out
    d = encoder.config.d_model
    for index, layer in enumerate(encoder.blocks):
        prefix = f"{_AUDIO}.layers.{index}"
        for kind, joined in (("weight", layer.wqkv), ("bias", layer.qkv_bias)):
            for name, part in zip("qkv", torch.split(joined, d), strict=True):
                yield f"{prefix}.self_attn.{name}_proj.{kind}", part
        for name, matrix, bias in (
            ("self_attn.out_proj", layer.wo, layer.o_bias),
            ("self_attn_layer_norm", layer.attention_norm, layer.attention_norm_bias),
            ("final_layer_norm", layer.ffn_norm, layer.ffn_norm_bias),
            ("fc1", layer.w1, layer.b1),
            ("fc2", layer.w2, layer.b2),
        ):
            yield f"{prefix}.{name}.weight", matrix
            yield f"{prefix}.{name}.bias", bias
    for name, matrix, bias in (
        ("ln_post", encoder.norm, encoder.norm_bias),
        ("proj1", encoder.proj1, encoder.proj1_bias),
        ("proj2", encoder.proj2, encoder.proj2_bias),
    ):
        yield f"{_AUDIO}.{name}.weight", matrix
        yield f"{_AUDIO}.{name}.bias", bias


# Loading --------------------------------------------------------------------------------------------------------------


def _fill(model: TextModel, folder: Path) -> None:
    checkpoint = Checkpoint(folder)
    targets = dict(_text_targets(model))
    dims = model.text.stack
    template = dims.template()
    layers = (name for index in range(dims.layers) for name, _ in _text_layer(index, template))
    checkpoint.require([*targets, *layers])
    checkpoint.fill(targets)
    model.stack.fill(lambda index, layer: checkpoint.fill(dict(_text_layer(index, layer))))


def load_encoder(folder: Path, config: AudioSection, *, device: torch.device, dtype: torch.dtype) -> AudioEncoder:
    """The audio encoder of a recogniser or an aligner; each has its own.

    Raises:
        WeightsError: a file or a tensor is missing, or a shape differs from ``config.json``; the message names it.
    """
    encoder = AudioEncoder(config, device=device, dtype=dtype)
    Checkpoint(folder).fill(dict(_audio_targets(encoder)))
    return encoder


def load_asr(
    folder: Path, *, device: torch.device, dtype: torch.dtype, make_stack: StackFactory = LayerStack
) -> tuple[AsrModel, AsrTokenizer]:
    """The language model and its tokenizer. A stored copy of a tied head is not read.

    Raises:
        WeightsError: see :func:`load_encoder`.
    """
    config, tokenizer = open_asr(folder)
    model = AsrModel(config, device=device, dtype=dtype, make_stack=make_stack)
    _fill(model, folder)
    return model, tokenizer


def load_aligner(folder: Path, *, device: torch.device, dtype: torch.dtype) -> tuple[Aligner, AsrTokenizer]:
    """The aligner's language model and its tokenizer.

    Raises:
        WeightsError: see :func:`load_encoder`.
    """
    config, tokenizer = open_aligner(folder)
    model = Aligner(config, device=device, dtype=dtype)
    _fill(model, folder)
    return model, tokenizer


def random_asr(
    config: AsrConfig,
    seed: int,
    *,
    device: torch.device,
    dtype: torch.dtype,
    make_stack: StackFactory = LayerStack,
) -> AsrModel:
    """A language model of the given sizes whose weights mean nothing."""
    model = AsrModel(config, device=device, dtype=dtype, make_stack=make_stack)
    model.randomise(torch.Generator(device).manual_seed(seed))
    return model


def random_aligner(config: AlignerConfig, seed: int, *, device: torch.device, dtype: torch.dtype) -> Aligner:
    """An aligner of the given sizes whose weights mean nothing."""
    model = Aligner(config, device=device, dtype=dtype)
    model.randomise(torch.Generator(device).manual_seed(seed))
    return model


def random_encoder(config: AudioSection, seed: int, *, device: torch.device, dtype: torch.dtype) -> AudioEncoder:
    """An encoder of the given sizes whose weights mean nothing."""
    encoder = AudioEncoder(config, device=device, dtype=dtype)
    encoder.randomise(torch.Generator(device).manual_seed(seed))
    return encoder
