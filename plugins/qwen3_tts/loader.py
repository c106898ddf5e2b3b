"""Weights of the talker from a folder in the Hub's layout, or random ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from omni.engines.torch import Checkpoint, DecoderLayer, LayerStack, StackFactory
from qwen3_tts.config import TTSConfig, load_config
from qwen3_tts.dims import talker_stack
from qwen3_tts.model import Talker

_TALKER = "talker.model"
_PREDICTOR = "talker.code_predictor"
_ROWS = 4096
"""Rows of the text embedding that are projected at a time."""


def _layer(prefix: str, layer: DecoderLayer) -> Iterator[tuple[str, Tensor]]:
    """Names in the checkpoint and where each goes."""
    d = layer.dims
    yield f"{prefix}.input_layernorm.weight", layer.attention_norm
    yield f"{prefix}.post_attention_layernorm.weight", layer.ffn_norm
    sizes = [d.heads * d.head_dim, d.kv_heads * d.head_dim, d.kv_heads * d.head_dim]
    for name, part in zip("qkv", torch.split(layer.wqkv, sizes), strict=True):
        yield f"{prefix}.self_attn.{name}_proj.weight", part
    yield f"{prefix}.self_attn.o_proj.weight", layer.wo
    for name, norm in (("q", layer.q_norm), ("k", layer.k_norm)):
        assert norm is not None
        yield f"{prefix}.self_attn.{name}_norm.weight", norm
    yield f"{prefix}.mlp.gate_proj.weight", layer.w13[: d.ffn]
    yield f"{prefix}.mlp.up_proj.weight", layer.w13[d.ffn :]
    yield f"{prefix}.mlp.down_proj.weight", layer.w2


def _talker_layer(index: int, layer: DecoderLayer) -> Iterator[tuple[str, Tensor]]:
    return _layer(f"{_TALKER}.layers.{index}", layer)


def _targets(model: Talker) -> Iterator[tuple[str, Tensor]]:
    """Tensors that are copied as they are; the layers of the talker come apart."""
    size = model.config.codebook_size
    yield f"{_TALKER}.norm.weight", model.stack.norm
    yield f"{_TALKER}.codec_embedding.weight", model.codec[: model.config.talker.vocab_size]
    for group in range(model.codebooks - 1):
        rows = slice(group * size, (group + 1) * size)
        yield f"{_PREDICTOR}.model.codec_embedding.{group}.weight", model.residual[rows]
        yield f"{_PREDICTOR}.lm_head.{group}.weight", model.depth_heads[group]
    for index, layer in enumerate(model.depth.layers):
        assert isinstance(layer, DecoderLayer)
        yield from _layer(f"{_PREDICTOR}.model.layers.{index}", layer)
    yield f"{_PREDICTOR}.model.norm.weight", model.depth.norm
    if model.project is not None and model.project_bias is not None:
        yield f"{_PREDICTOR}.small_to_mtp_projection.weight", model.project
        yield f"{_PREDICTOR}.small_to_mtp_projection.bias", model.project_bias


def _text_weights(model: Talker) -> dict[str, Tensor]:
    """What the text embedding is made of, to be filled: the table in the model's type, its projection in float32."""
    talker = model.config.talker
    width, device = talker.text_hidden_size, model.device

    def empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(*shape, device=device, dtype=dtype)

    return {
        f"{_TALKER}.text_embedding.weight": empty(talker.text_vocab_size, width, dtype=model.dtype),
        "talker.text_projection.linear_fc1.weight": empty(width, width),
        "talker.text_projection.linear_fc1.bias": empty(width),
        "talker.text_projection.linear_fc2.weight": empty(model.width, width),
        "talker.text_projection.linear_fc2.bias": empty(model.width),
    }


@torch.inference_mode()
def _project_text(model: Talker, weights: dict[str, Tensor]) -> None:
    """Fill the model's text embedding with the projected one."""
    table, w1, b1, w2, b2 = weights.values()
    for first in range(0, table.shape[0], _ROWS):
        rows = table[first : first + _ROWS].float()
        model.text[first : first + _ROWS] = F.linear(F.silu(F.linear(rows, w1, b1)), w2, b2)


@torch.inference_mode()
def _finish(model: Talker) -> None:
    """What follows from other weights: zero rows, and the projected inputs of the depth model."""
    model.codec[model.config.talker.vocab_size :] = 0
    if model.fed is not None and model.project is not None and model.project_bias is not None:
        size = model.config.codebook_size
        source = torch.cat((model.codec[:size], model.residual[:-size]))
        model.fed.copy_(F.linear(source, model.project, model.project_bias))


def load_talker(
    folder: Path, *, device: torch.device, dtype: torch.dtype, make_stack: StackFactory = LayerStack
) -> Talker:
    """The model of a folder.

    Raises:
        WeightsError: a file or a tensor is missing, or a shape differs from ``config.json``; the message names it.
    """
    config = load_config(folder)
    checkpoint = Checkpoint(folder)
    model = Talker(config, device=device, dtype=dtype, make_stack=make_stack)
    targets, text = dict(_targets(model)), _text_weights(model)
    head = torch.empty(config.talker.vocab_size, model.width, device=device, dtype=dtype)
    targets["talker.codec_head.weight"] = head
    dims = talker_stack(config)
    template = dims.template()
    layers = [name for index in range(dims.layers) for name, _ in _talker_layer(index, template)]
    checkpoint.require([*targets, *text, *layers])
    checkpoint.fill(targets)
    model.stack.fill(lambda index, layer: checkpoint.fill(dict(_talker_layer(index, layer))))
    checkpoint.fill(text)
    _project_text(model, text)
    size = config.codebook_size
    model.head.zero_()
    model.head[:size] = head[:size]
    model.head[size] = head[config.talker.codec_eos_id]
    _finish(model)
    return model


def random_talker(
    config: TTSConfig,
    seed: int,
    *,
    device: torch.device,
    dtype: torch.dtype,
    make_stack: StackFactory = LayerStack,
) -> Talker:
    """A model of the given sizes whose weights mean nothing, of a scale at which it neither dies nor explodes: for
    benchmarks, and to try an API without weights. It never ends by itself."""
    model = Talker(config, device=device, dtype=dtype, make_stack=make_stack)
    generator = torch.Generator(device).manual_seed(seed)

    def draw(*parameters: nn.Parameter) -> None:
        for parameter in parameters:
            if parameter.dim() == 1:
                parameter.fill_(1.0)
            else:
                parameter.normal_(0.0, parameter.shape[-1] ** -0.5, generator=generator)

    # In an order that does not depend on what the stack is made of.
    draw(*(p for name, p in model.named_parameters() if not name.startswith("stack.")))
    model.stack.norm.fill_(1.0)
    model.stack.fill(lambda _, layer: draw(*layer.parameters()))
    if model.project_bias is not None:
        model.project_bias.zero_()
    model.head[config.codebook_size :] = 0
    _finish(model)
    return model
