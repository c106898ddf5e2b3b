"""Sizes of the models, always read from the checkpoint's ``config.json``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt, ValidationError, model_validator

from omni.engines.torch import BlockDims, StackDims
from omni.errors import WeightsError

CHUNK_FRAMES = 100
"""Mel frames that the convolutions see at once: one second."""
CHUNK_TOKENS = 13
"""Positions that they make of them."""


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class AudioSection(_Section):
    """``audio_config``. The arithmetic of chunks holds for ``n_window`` 50 alone, as in every published checkpoint."""

    d_model: PositiveInt
    encoder_layers: PositiveInt
    encoder_attention_heads: PositiveInt
    encoder_ffn_dim: PositiveInt
    downsample_hidden_size: PositiveInt
    output_dim: PositiveInt
    num_mel_bins: Literal[128]
    n_window: Literal[50]
    n_window_infer: PositiveInt
    conv_chunksize: PositiveInt = 500
    activation_function: Literal["gelu"] = "gelu"
    scale_embedding: Literal[False] = False

    @model_validator(mode="after")
    def _fits(self) -> AudioSection:
        if self.d_model % self.encoder_attention_heads or self.d_model % 2:
            raise ValueError("d_model must be even and a multiple of encoder_attention_heads")
        if self.n_window_infer % CHUNK_FRAMES:
            raise ValueError(f"n_window_infer must be a multiple of {CHUNK_FRAMES}")
        return self

    @property
    def window_chunks(self) -> int:
        """Chunks of one second within which positions attend to each other."""
        return self.n_window_infer // CHUNK_FRAMES


class TextSection(_Section):
    """``text_config``. Its three rotary sections get the same positions, so it is ordinary RoPE."""

    vocab_size: PositiveInt
    hidden_size: PositiveInt
    intermediate_size: PositiveInt
    num_hidden_layers: PositiveInt
    num_attention_heads: PositiveInt
    num_key_value_heads: PositiveInt
    head_dim: PositiveInt
    rms_norm_eps: PositiveFloat
    rope_theta: PositiveFloat
    max_position_embeddings: PositiveInt
    tie_word_embeddings: bool = False
    attention_bias: Literal[False] = False
    hidden_act: Literal["silu"] = "silu"

    @property
    def stack(self) -> StackDims:
        block = BlockDims(
            dim=self.hidden_size,
            heads=self.num_attention_heads,
            kv_heads=self.num_key_value_heads,
            head_dim=self.head_dim,
            ffn=self.intermediate_size,
            eps=self.rms_norm_eps,
            qk_norm=True,
        )
        return StackDims(
            block, self.num_hidden_layers, self.max_position_embeddings, self.rope_theta, rope_interleaved=False
        )


class ThinkerConfig(_Section):
    """``thinker_config``: ``model_type`` tells the recogniser from the aligner."""

    model_type: str
    audio: AudioSection = Field(alias="audio_config")
    text: TextSection = Field(alias="text_config")
    audio_pad_id: int = Field(alias="audio_token_id")
    classes: PositiveInt | None = Field(None, alias="classify_num")


class _Root(_Section):
    model_type: Literal["qwen3_asr"]
    thinker: ThinkerConfig = Field(alias="thinker_config")
    timestamp_id: int | None = Field(None, alias="timestamp_token_id")
    timestamp_ms: PositiveFloat | None = Field(None, alias="timestamp_segment_time")


class AsrConfig(_Section):
    """The recogniser. A generation ends with one of ``stop_ids``."""

    audio: AudioSection
    text: TextSection
    audio_pad_id: int
    stop_ids: tuple[int, ...]


class AlignerConfig(_Section):
    """The forced aligner: ``classes`` multiples of ``timestamp_ms`` milliseconds."""

    audio: AudioSection
    text: TextSection
    audio_pad_id: int
    classes: int
    timestamp_id: int
    timestamp_ms: float


def parse_asr(values: dict[str, Any], stop_ids: tuple[int, ...]) -> AsrConfig:
    """``values``: the content of ``config.json``. Raises :class:`WeightsError` naming the fields that do not fit."""
    root = _root(values)
    thinker = root.thinker
    if thinker.model_type != "qwen3_asr":
        raise WeightsError(
            f"config.json is of a {thinker.model_type!r}, not of a speech recogniser (qwen3_asr)"
            + ("; it goes to --set aligner.weights=…" if thinker.classes else "")
        )
    _check_ids(thinker, audio_token_id=thinker.audio_pad_id, **{f"stop id {i}": i for i in stop_ids})
    return AsrConfig(audio=thinker.audio, text=thinker.text, audio_pad_id=thinker.audio_pad_id, stop_ids=stop_ids)


def parse_aligner(values: dict[str, Any]) -> AlignerConfig:
    """As :func:`parse_asr`, of a forced aligner."""
    root = _root(values)
    thinker = root.thinker
    if thinker.model_type != "qwen3_forced_aligner":
        raise WeightsError(f"config.json is of a {thinker.model_type!r}, not of a forced aligner")
    if thinker.classes is None or root.timestamp_id is None or root.timestamp_ms is None:
        raise WeightsError(
            "config.json of a forced aligner needs thinker_config.classify_num, timestamp_token_id and "
            "timestamp_segment_time"
        )
    _check_ids(thinker, audio_token_id=thinker.audio_pad_id, timestamp_token_id=root.timestamp_id)
    return AlignerConfig(
        audio=thinker.audio,
        text=thinker.text,
        audio_pad_id=thinker.audio_pad_id,
        classes=thinker.classes,
        timestamp_id=root.timestamp_id,
        timestamp_ms=root.timestamp_ms,
    )


def _root(values: dict[str, Any]) -> _Root:
    try:
        root = _Root.model_validate(values)
    except ValidationError as error:
        lines = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise WeightsError(f"config.json is not one of a Qwen3-ASR model: {lines}") from error
    audio, text = root.thinker.audio, root.thinker.text
    if audio.output_dim != text.hidden_size:
        raise WeightsError(
            f"config.json: audio_config.output_dim is {audio.output_dim}, text_config.hidden_size {text.hidden_size}"
        )
    return root


def _check_ids(thinker: ThinkerConfig, **ids: int) -> None:
    for name, value in ids.items():
        if not 0 <= value < thinker.text.vocab_size:
            raise WeightsError(f"config.json: {name} is outside of the vocabulary of {thinker.text.vocab_size}")


def read_object(file: Path) -> dict[str, Any]:
    """A JSON file that holds an object. Raises :class:`WeightsError`."""
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise WeightsError(f"cannot read {file}: {error}") from error
    if not isinstance(values, dict):
        raise WeightsError(f"{file} does not hold an object")
    return values
