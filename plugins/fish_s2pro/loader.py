"""Weights of the AR models from a folder in the Hub's layout, or random ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from fish_s2pro.config import FishConfig, load_config
from fish_s2pro.model import DualAR
from fish_s2pro.tokenizer import FishTokenizer
from omni.engines.torch import Checkpoint, DecoderLayer, LayerStack, StackFactory
from omni.errors import WeightsError

_SLOW, _FAST = "text_model.model", "audio_decoder"


def _layer(prefix: str, layer: DecoderLayer, checkpoint: Checkpoint) -> Iterator[tuple[str, Tensor]]:
    """Checkpoint names and where each goes; q, k and v may be one tensor or three."""
    d = layer.dims
    yield f"{prefix}.attention_norm.weight", layer.attention_norm
    yield f"{prefix}.ffn_norm.weight", layer.ffn_norm
    yield f"{prefix}.attention.wo.weight", layer.wo
    yield f"{prefix}.feed_forward.w1.weight", layer.w13[: d.ffn]
    yield f"{prefix}.feed_forward.w3.weight", layer.w13[d.ffn :]
    yield f"{prefix}.feed_forward.w2.weight", layer.w2
    for kind, joined in (("weight", layer.wqkv), ("bias", layer.qkv_bias)):
        if joined is None:
            continue
        if f"{prefix}.attention.wq.{kind}" in checkpoint:
            sizes = [d.heads * d.head_dim, d.kv_heads * d.head_dim, d.kv_heads * d.head_dim]
            for name, part in zip("qkv", torch.split(joined, sizes), strict=True):
                yield f"{prefix}.attention.w{name}.{kind}", part
        else:
            yield f"{prefix}.attention.wqkv.{kind}", joined
    optional = {"wo.bias": layer.o_bias, "q_norm.weight": layer.q_norm, "k_norm.weight": layer.k_norm}
    for name, target in optional.items():
        if target is not None:
            yield f"{prefix}.attention.{name}", target


def _targets(model: DualAR, checkpoint: Checkpoint) -> Iterator[tuple[str, Tensor]]:
    """All but the layers of the slow AR."""
    yield f"{_SLOW}.embeddings.weight", model.embeddings
    yield f"{_SLOW}.norm.weight", model.stack.norm
    yield f"{_FAST}.codebook_embeddings.weight", model.code_embeddings
    yield f"{_FAST}.embeddings.weight", model.fast_embeddings
    yield f"{_FAST}.norm.weight", model.depth.norm
    yield f"{_FAST}.output.weight", model.fast_head
    if model.project is not None and model.project_bias is not None:
        yield f"{_FAST}.project_in.weight", model.project
        yield f"{_FAST}.project_in.bias", model.project_bias
    for index, layer in enumerate(model.depth.layers):
        assert isinstance(layer, DecoderLayer)
        yield from _layer(f"{_FAST}.layers.{index}", layer, checkpoint)


def _slow_layer(index: int, layer: DecoderLayer, checkpoint: Checkpoint) -> Iterator[tuple[str, Tensor]]:
    return _layer(f"{_SLOW}.layers.{index}", layer, checkpoint)


def with_tokenizer(config: FishConfig, tokenizer: FishTokenizer) -> FishConfig:
    """The tokenizer has the last word on ids, as in the reference.

    Raises:
        WeightsError: an id does not fit in the vocabulary of the weights.
    """
    if tokenizer.size > config.text.vocab_size:
        raise WeightsError(f"tokenizer.json has {tokenizer.size} ids, the weights have {config.text.vocab_size}")
    ids = {
        "end_id": tokenizer.im_end,
        "semantic_begin": tokenizer.semantic_begin,
        "semantic_end": tokenizer.semantic_end,
    }
    return config.model_copy(update=ids)


def open_folder(folder: Path) -> tuple[FishConfig, FishTokenizer]:
    """Sizes and tokenizer. Raises :class:`WeightsError`."""
    tokenizer = FishTokenizer.load(folder)
    return with_tokenizer(load_config(folder), tokenizer), tokenizer


def load_ar(
    folder: Path, *, device: torch.device, dtype: torch.dtype, make_stack: StackFactory = LayerStack
) -> tuple[DualAR, FishTokenizer]:
    """The model and its tokenizer.

    Raises:
        WeightsError: a file or a tensor is missing, or a shape differs from ``config.json``; the message names it.
    """
    config, tokenizer = open_folder(folder)
    checkpoint = Checkpoint(folder)
    model = DualAR(config, device=device, dtype=dtype, make_stack=make_stack)
    targets = dict(_targets(model, checkpoint))
    template = config.stack.template()
    slow = (_slow_layer(index, template, checkpoint) for index in range(config.stack.layers))
    checkpoint.require([*targets, *(name for layer in slow for name, _ in layer)])
    checkpoint.fill(targets)
    model.stack.fill(lambda index, layer: checkpoint.fill(dict(_slow_layer(index, layer, checkpoint))))
    if config.text.tie_word_embeddings:
        model.cut_head()
    else:
        source = torch.empty(config.text.vocab_size, config.text.dim, device=device, dtype=dtype)
        checkpoint.copy(f"{_SLOW}.output.weight", source)
        model.cut_head(source)
    return model, tokenizer


def random_ar(
    config: FishConfig,
    seed: int,
    *,
    device: torch.device,
    dtype: torch.dtype,
    make_stack: StackFactory = LayerStack,
) -> DualAR:
    """A model of the given sizes whose weights mean nothing: for benchmarks, and to try an API without weights."""
    model = DualAR(config, device=device, dtype=dtype, make_stack=make_stack)
    model.randomise(seed)
    return model
