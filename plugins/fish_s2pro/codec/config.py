"""Dimensions of the codec: the published model's constants, or a ``codec_config.json`` beside ``codec.pth``."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from omni import WeightsError

Size = Annotated[int, Field(ge=1)]
Factors = Annotated[tuple[Size, ...], Field(min_length=1)]

RandomWidth = Annotated[float | None, Field(gt=0, le=1)]
"""Option of the stages that run the codec: random weights of this fraction of the published widths."""

ENCODER_WINDOW = 512
"""Positions that the encoder's transformer sees; the reference cannot configure it."""
FFN_RATIO = 3
"""Hidden width of the encoder transformer's feed-forward, in multiples of its width."""
CONVNEXT_RATIO = 4


class _Section(BaseModel):
    """Fields have the names of the reference's configuration; those that have no effect on the arithmetic
    (block sizes, initialisation) are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class AttentionConfig(_Section):
    head_dim: Annotated[int, Field(ge=2, multiple_of=2)] = 64
    rope_base: Annotated[float, Field(gt=0)] = 10000.0
    norm_eps: Annotated[float, Field(gt=0)] = 1e-5
    n_local_heads: Literal[-1] = -1
    """Grouped key/value heads: the codec has none."""


class TransformerConfig(AttentionConfig):
    window_size: Size = 128
    n_layer: Size = 8
    n_head: Size = 16
    dim: Size = 1024
    intermediate_size: Size = 3072

    @model_validator(mode="after")
    def _heads_fill_the_width(self) -> Self:
        if self.n_head * self.head_dim != self.dim:
            raise ValueError(f"n_head x head_dim = {self.n_head * self.head_dim} must equal dim = {self.dim}")
        return self


class QuantizerConfig(_Section):
    input_dim: Size = 1024
    n_codebooks: Size = 9
    """Residual codebooks; the semantic one comes before them."""
    codebook_size: Size = 1024
    semantic_codebook_size: Size = 4096
    codebook_dim: Size = 8
    downsample_factor: Factors = (2, 2)
    transformer: TransformerConfig = TransformerConfig()

    @property
    def codebook_sizes(self) -> tuple[int, ...]:
        return (self.semantic_codebook_size, *[self.codebook_size] * self.n_codebooks)


class CodecConfig(_Section):
    """Defaults are the constants of fishaudio/s2-pro, whose repository holds no configuration of the codec."""

    sample_rate: Annotated[int, Field(ge=1000, le=384_000)] = 44100
    encoder_dim: Size = 64
    encoder_rates: Factors = (2, 4, 8, 8)
    encoder_transformer_layers: tuple[Annotated[int, Field(ge=0)], ...] = (0, 0, 0, 4)
    decoder_dim: Size = 1536
    decoder_rates: Factors = (8, 8, 4, 2)
    transformer_general_config: AttentionConfig = AttentionConfig()
    quantizer: QuantizerConfig = QuantizerConfig()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        latent = self.encoder_dim * 2 ** len(self.encoder_rates)
        if not latent == self.quantizer.input_dim == self.quantizer.transformer.dim:
            raise ValueError(
                f"encoder_dim x 2^stages = {latent}, quantizer.input_dim = {self.quantizer.input_dim} and "
                f"quantizer.transformer.dim = {self.quantizer.transformer.dim} must be equal"
            )
        if prod(self.encoder_rates) != prod(self.decoder_rates):
            raise ValueError("encoder_rates and decoder_rates must have the same product")
        if len(self.encoder_transformer_layers) != len(self.encoder_rates):
            raise ValueError("encoder_transformer_layers must have one entry per encoder rate")
        if self.decoder_dim % 2 ** len(self.decoder_rates):
            raise ValueError("decoder_dim must be divisible by 2 to the number of decoder rates")
        return self

    @property
    def frame_positions(self) -> int:
        """Positions of the convolutional latent per frame."""
        return prod(self.quantizer.downsample_factor)

    @property
    def frame_samples(self) -> int:
        """Samples per frame."""
        return prod(self.encoder_rates) * self.frame_positions

    @property
    def codebooks(self) -> int:
        return len(self.quantizer.codebook_sizes)

    def scaled(self, width: float) -> CodecConfig:
        """The same depth with every width multiplied, for random weights of a chosen size."""
        heads = max(1, round(self.quantizer.transformer.n_head * width))
        latent = heads * self.quantizer.transformer.head_dim
        stages = 2 ** len(self.encoder_rates)
        transformer = self.quantizer.transformer.model_copy(
            update={"n_head": heads, "dim": latent, "intermediate_size": latent * 3}
        )
        decoder_step = 2 ** len(self.decoder_rates)
        fields = self.model_dump() | {
            "encoder_dim": latent // stages,
            "decoder_dim": max(1, round(self.decoder_dim * width / decoder_step)) * decoder_step,
            "quantizer": self.quantizer.model_dump() | {"input_dim": latent, "transformer": transformer.model_dump()},
        }
        return CodecConfig.model_validate(fields)


def read_config(folder: Path) -> CodecConfig:
    """``codec_config.json`` of a weights folder, or the published model's constants when there is none.

    Raises:
        WeightsError: the file is not a valid configuration; names the field.
    """
    path = folder / "codec_config.json"
    if not path.is_file():
        return CodecConfig()
    try:
        return CodecConfig.model_validate(json.loads(path.read_text("utf-8")))
    except (ValidationError, ValueError) as error:
        raise WeightsError(f"{path.name} does not describe a codec: {error}") from error
