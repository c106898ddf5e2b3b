"""Sizes of the AR models, always read from the checkpoint's ``config.json``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt, ValidationError

from omni.engines.torch import BlockDims, StackDims
from omni.errors import WeightsError


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class TextSection(_Section):
    """``text_config``: the slow AR."""

    vocab_size: PositiveInt
    n_layer: PositiveInt
    dim: PositiveInt
    n_head: PositiveInt
    n_local_heads: PositiveInt
    head_dim: PositiveInt
    intermediate_size: PositiveInt
    rope_base: PositiveFloat
    norm_eps: PositiveFloat
    max_seq_len: PositiveInt
    attention_qk_norm: bool = False
    attention_qkv_bias: bool = False
    attention_o_bias: bool = False
    tie_word_embeddings: bool = True
    use_moe: Literal[False] = False


class DepthSection(_Section):
    """``audio_decoder_config``: the fast AR. A field that is absent has the slow AR's value."""

    vocab_size: PositiveInt
    num_codebooks: PositiveInt
    n_layer: PositiveInt
    dim: PositiveInt | None = None
    n_head: PositiveInt | None = None
    n_local_heads: PositiveInt | None = None
    head_dim: PositiveInt | None = None
    intermediate_size: PositiveInt | None = None
    attention_qk_norm: bool | None = None
    attention_qkv_bias: bool | None = None
    attention_o_bias: bool | None = None
    use_moe: Literal[False] = False


class FishConfig(_Section):
    """``config.json``. Rotary base and norm epsilon of the fast AR are the slow AR's, as in the reference."""

    model_type: Literal["fish_qwen3_omni"]
    text: TextSection = Field(alias="text_config")
    depth: DepthSection = Field(alias="audio_decoder_config")
    end_id: int = Field(alias="eos_token_id")
    semantic_begin: int = Field(alias="semantic_start_token_id")
    semantic_end: int = Field(alias="semantic_end_token_id")
    """The last semantic id."""

    def is_frame(self, tokens: torch.Tensor) -> torch.Tensor:
        """Which of the tokens are audio frames."""
        return (tokens >= self.semantic_begin) & (tokens <= self.semantic_end)

    @property
    def codebooks(self) -> int:
        return self.depth.num_codebooks

    @property
    def codebook_size(self) -> int:
        """Outputs of the head of every codebook; the codec may know fewer."""
        return self.depth.vocab_size

    @property
    def slow(self) -> BlockDims:
        t = self.text
        return BlockDims(
            dim=t.dim,
            heads=t.n_head,
            kv_heads=t.n_local_heads,
            head_dim=t.head_dim,
            ffn=t.intermediate_size,
            eps=t.norm_eps,
            qk_norm=t.attention_qk_norm,
            qkv_bias=t.attention_qkv_bias,
            o_bias=t.attention_o_bias,
        )

    @property
    def stack(self) -> StackDims:
        """The slow AR; its rotary table is rounded to bfloat16, as in the reference."""
        t = self.text
        return StackDims(self.slow, t.n_layer, t.max_seq_len, t.rope_base, rope_rounding=torch.bfloat16)

    @property
    def fast(self) -> BlockDims:
        t, d = self.text, self.depth

        def pick(name: str) -> Any:
            value = getattr(d, name)
            return getattr(t, name) if value is None else value

        return BlockDims(
            dim=pick("dim"),
            heads=pick("n_head"),
            kv_heads=pick("n_local_heads"),
            head_dim=pick("head_dim"),
            ffn=pick("intermediate_size"),
            eps=t.norm_eps,
            qk_norm=pick("attention_qk_norm"),
            qkv_bias=pick("attention_qkv_bias"),
            o_bias=pick("attention_o_bias"),
        )


def parse_config(values: dict[str, Any]) -> FishConfig:
    """Raises :class:`WeightsError` naming the fields that do not fit."""
    try:
        config = FishConfig.model_validate(values)
    except ValidationError as error:
        lines = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise WeightsError(f"config.json is not one of a Fish S2 model: {lines}") from error
    ids = (config.end_id, config.semantic_begin, config.semantic_end)
    if not all(0 <= i < config.text.vocab_size for i in ids) or config.semantic_begin > config.semantic_end:
        raise WeightsError("config.json: end and semantic token ids must lie within the vocabulary")
    return config


def load_config(folder: Path) -> FishConfig:
    """Raises :class:`WeightsError` if ``config.json`` is missing, broken or of another model."""
    file = folder / "config.json"
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise WeightsError(f"cannot read {file}: {error}") from error
    if not isinstance(values, dict):
        raise WeightsError(f"{file} does not hold an object")
    return parse_config(values)
