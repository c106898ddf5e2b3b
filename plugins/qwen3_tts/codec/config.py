"""``speech_tokenizer/config.json``: sizes of the 12.5 Hz codec."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt, ValidationError, model_validator

from omni import WeightsError
from qwen3_tts.config import read_json

FOLDER = "speech_tokenizer"

RandomWidth = Annotated[float | None, Field(gt=0, le=1)]
"""Option of the stages that run the codec: random weights of this fraction of the published widths."""

Factors = Annotated[tuple[PositiveInt, ...], Field(min_length=1)]


class _Section(BaseModel):
    """Fields have the names of the reference's configuration; those without effect on the arithmetic are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class _Attention(_Section):
    hidden_size: PositiveInt
    intermediate_size: PositiveInt
    num_hidden_layers: PositiveInt
    num_attention_heads: PositiveInt
    num_key_value_heads: PositiveInt
    head_dim: Annotated[int, Field(ge=2, multiple_of=2)]
    rope_theta: PositiveFloat
    sliding_window: PositiveInt
    attention_bias: Literal[False] = False

    @model_validator(mode="after")
    def _no_shared_heads(self) -> Self:
        if self.num_key_value_heads != self.num_attention_heads:
            raise ValueError("num_key_value_heads must be num_attention_heads")
        return self

    @property
    def attention_width(self) -> int:
        return self.num_attention_heads * self.head_dim


class DecoderConfig(_Attention):
    """``decoder_config``."""

    latent_dim: PositiveInt
    codebook_dim: Annotated[int, Field(ge=2, multiple_of=2)]
    """Width after the quantiser; its vectors are half as wide."""
    codebook_size: PositiveInt
    num_quantizers: Annotated[int, Field(ge=2)]
    num_semantic_quantizers: Literal[1] = 1
    decoder_dim: PositiveInt
    upsample_rates: Factors
    upsampling_ratios: Factors
    rms_norm_eps: PositiveFloat = 1e-5
    hidden_act: Literal["silu"] = "silu"

    @model_validator(mode="after")
    def _halves(self) -> Self:
        if self.decoder_dim % 2 ** len(self.upsample_rates):
            raise ValueError("decoder_dim must be divisible by 2 to the number of upsample_rates")
        return self

    @property
    def frame_samples(self) -> int:
        return prod(self.upsample_rates) * prod(self.upsampling_ratios)


class EncoderConfig(_Attention):
    """``encoder_config``: the first half of a Mimi codec, and its quantiser."""

    num_filters: PositiveInt
    upsampling_ratios: Factors
    """In the order of the decoder that the encoder was trained with: the encoder strides the other way round."""
    kernel_size: PositiveInt = 7
    last_kernel_size: PositiveInt = 3
    residual_kernel_size: PositiveInt = 3
    compress: PositiveInt = 2
    num_residual_layers: Literal[1] = 1
    codebook_dim: PositiveInt
    vector_quantization_hidden_dimension: PositiveInt
    codebook_size: PositiveInt
    num_quantizers: PositiveInt
    num_semantic_quantizers: Literal[1] = 1
    norm_eps: PositiveFloat = 1e-5
    audio_channels: Literal[1] = 1
    hidden_act: Literal["gelu"] = "gelu"
    pad_mode: Literal["constant"] = "constant"
    use_causal_conv: Literal[True] = True
    use_conv_shortcut: Literal[False] = False

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.codebook_dim != self.vector_quantization_hidden_dimension:
            raise ValueError("codebook_dim must be vector_quantization_hidden_dimension")
        if self.num_filters % self.compress:
            raise ValueError("num_filters must be divisible by compress")
        return self


class CodecConfig(_Section):
    model_type: Literal["qwen3_tts_tokenizer_12hz"]
    sample_rate: PositiveInt = Field(alias="output_sample_rate")
    input_sample_rate: PositiveInt
    codebooks: PositiveInt = Field(alias="encoder_valid_num_quantizers")
    encode_downsample_rate: PositiveInt
    decode_upsample_rate: PositiveInt
    encoder: EncoderConfig = Field(alias="encoder_config")
    decoder: DecoderConfig = Field(alias="decoder_config")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.sample_rate != self.input_sample_rate:
            raise ValueError("input_sample_rate and output_sample_rate must be equal")
        strides = prod(self.encoder.upsampling_ratios) * 2
        sizes = {self.encode_downsample_rate, self.decode_upsample_rate, strides, self.decoder.frame_samples}
        if len(sizes) > 1:
            raise ValueError(f"samples per frame must be the same everywhere, they are {sorted(sizes)}")
        if self.decoder.num_quantizers != self.codebooks or self.encoder.num_quantizers < self.codebooks:
            raise ValueError("encoder_valid_num_quantizers must be decoder_config.num_quantizers")
        if self.decoder.codebook_size != self.encoder.codebook_size:
            raise ValueError("codebook_size must be the same in encoder_config and decoder_config")
        return self

    @property
    def frame_samples(self) -> int:
        """Samples per frame."""
        return self.decode_upsample_rate


def parse_config(values: dict[str, Any]) -> CodecConfig:
    """Raises :class:`WeightsError` naming the fields that do not fit."""
    try:
        return CodecConfig.model_validate(values)
    except ValidationError as error:
        lines = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'file'}: {e['msg']}" for e in error.errors())
        raise WeightsError(f"{FOLDER}/config.json does not describe a 12 Hz codec: {lines}") from error


def load_config(folder: Path) -> CodecConfig:
    """Of a checkpoint's folder. Raises :class:`WeightsError` if the file is missing, broken or of another codec."""
    return parse_config(read_json(folder / FOLDER / "config.json"))


def published(width: float = 1.0) -> CodecConfig:
    """The published codec, or one whose widths are a fraction of its widths, for random weights."""

    def scaled(size: int, multiple: int = 1) -> int:
        return max(1, round(size * width / multiple)) * multiple

    shared = {"num_hidden_layers": 8, "head_dim": 64, "rope_theta": 1e4, "codebook_size": 2048}
    decoder_heads, encoder_heads = scaled(16), scaled(8)
    return parse_config(
        {
            "model_type": "qwen3_tts_tokenizer_12hz",
            "output_sample_rate": 24_000,
            "input_sample_rate": 24_000,
            "encode_downsample_rate": 1920,
            "decode_upsample_rate": 1920,
            "encoder_valid_num_quantizers": 16,
            "encoder_config": {
                **shared,
                "hidden_size": 64 * encoder_heads,
                "intermediate_size": 256 * encoder_heads,
                "num_attention_heads": encoder_heads,
                "num_key_value_heads": encoder_heads,
                "sliding_window": 250,
                "num_filters": scaled(64, 2),
                "upsampling_ratios": [8, 6, 5, 4],
                "codebook_dim": scaled(256),
                "vector_quantization_hidden_dimension": scaled(256),
                "num_quantizers": 32,
            },
            "decoder_config": {
                **shared,
                "hidden_size": scaled(512),
                "intermediate_size": scaled(1024),
                "num_attention_heads": decoder_heads,
                "num_key_value_heads": decoder_heads,
                "sliding_window": 72,
                "latent_dim": scaled(1024),
                "codebook_dim": scaled(512, 2),
                "num_quantizers": 16,
                "decoder_dim": scaled(1536, 16),
                "upsample_rates": [8, 5, 4, 3],
                "upsampling_ratios": [2, 2],
            },
        }
    )
