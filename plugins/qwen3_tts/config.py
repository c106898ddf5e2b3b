"""What a checkpoint says about itself: ``config.json`` and ``generation_config.json``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt, ValidationError, model_validator

from omni import WeightsError

Kind = Literal["base", "custom_voice", "voice_design"]

_NEVER_SAMPLED = 1024
"""So many ids at the end of the codec vocabulary are never sampled, but for the end of speech."""


class _Section(BaseModel):
    """Fields have the names of the reference's configuration; those without effect on the arithmetic are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class BlockSection(_Section):
    """A stack of decoder layers."""

    hidden_size: PositiveInt
    intermediate_size: PositiveInt
    num_hidden_layers: PositiveInt
    num_attention_heads: PositiveInt
    num_key_value_heads: PositiveInt
    head_dim: PositiveInt
    vocab_size: PositiveInt
    num_code_groups: PositiveInt
    rms_norm_eps: PositiveFloat
    rope_theta: PositiveFloat
    max_position_embeddings: PositiveInt
    hidden_act: Literal["silu"] = "silu"
    attention_bias: Literal[False] = False
    use_sliding_window: Literal[False] = False


class TalkerSection(BlockSection):
    """``talker_config``. Ids are of the codec track."""

    text_hidden_size: PositiveInt
    text_vocab_size: PositiveInt
    code_predictor: BlockSection = Field(alias="code_predictor_config")
    codec_pad_id: int
    codec_bos_id: int
    codec_eos_id: int = Field(alias="codec_eos_token_id")
    codec_think_id: int
    codec_nothink_id: int
    codec_think_bos_id: int
    codec_think_eos_id: int
    languages: dict[str, int] = Field(alias="codec_language_id", default_factory=dict)
    speakers: dict[str, int] = Field(alias="spk_id", default_factory=dict)
    dialects: dict[str, str | Literal[False]] = Field(alias="spk_is_dialect", default_factory=dict)

    @model_validator(mode="after")
    def _ids_fit(self) -> Self:
        special = [
            *(self.codec_pad_id, self.codec_bos_id, self.codec_eos_id, self.codec_think_id, self.codec_nothink_id),
            *(self.codec_think_bos_id, self.codec_think_eos_id, *self.languages.values(), *self.speakers.values()),
        ]
        codes = self.vocab_size - _NEVER_SAMPLED
        if codes != self.code_predictor.vocab_size:
            raise ValueError(
                f"vocab_size - {_NEVER_SAMPLED} = {codes} codes must be as many as code_predictor_config.vocab_size = "
                f"{self.code_predictor.vocab_size}"
            )
        if self.num_code_groups != self.code_predictor.num_code_groups or self.num_code_groups < 2:
            raise ValueError("num_code_groups must be 2 or more and the same in code_predictor_config")
        for name in (*self.speakers, *self.languages):
            if name != name.lower():
                raise ValueError(f"{name!r} must be in lower case")
        if not all(codes <= i < self.vocab_size for i in special):
            raise ValueError(f"ids of the codec track must be {codes} to {self.vocab_size - 1}")
        for dialect in self.dialects.values():
            if dialect and dialect not in self.languages:
                raise ValueError(f"the dialect {dialect!r} is not in codec_language_id")
        return self


class SpeakerSection(_Section):
    """``speaker_encoder_config``; what is absent has the reference's value."""

    enc_dim: PositiveInt
    sample_rate: Literal[24000] = 24000
    enc_channels: tuple[PositiveInt, ...] = (512, 512, 512, 512, 1536)
    enc_kernel_sizes: tuple[PositiveInt, ...] = (5, 3, 3, 3, 1)
    enc_dilations: tuple[PositiveInt, ...] = (1, 2, 3, 4, 1)
    enc_attention_channels: PositiveInt = 128
    enc_res2net_scale: Annotated[int, Field(ge=2)] = 8
    enc_se_channels: PositiveInt = 128
    mel_dim: PositiveInt = 128

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        channels = self.enc_channels
        if not 3 <= len(channels) == len(self.enc_kernel_sizes) == len(self.enc_dilations):
            raise ValueError("enc_channels, enc_kernel_sizes and enc_dilations must have the same length, 3 or more")
        inner = channels[1:-1]
        if set(inner) != {channels[0]} or channels[0] % self.enc_res2net_scale or channels[-1] != sum(inner):
            raise ValueError(
                "enc_channels must be equal and divisible by enc_res2net_scale, but for the last one, which is the sum "
                "of those between it and the first"
            )
        return self


class TTSConfig(_Section):
    """``config.json``."""

    model_type: Literal["qwen3_tts"]
    tokenizer_type: Literal["qwen3_tts_tokenizer_12hz"]
    kind: Kind = Field(alias="tts_model_type")
    size: str = Field(alias="tts_model_size")
    im_start_id: int = Field(alias="im_start_token_id")
    im_end_id: int = Field(alias="im_end_token_id")
    tts_pad_id: int = Field(alias="tts_pad_token_id")
    tts_bos_id: int = Field(alias="tts_bos_token_id")
    tts_eos_id: int = Field(alias="tts_eos_token_id")
    talker: TalkerSection = Field(alias="talker_config")
    speaker: SpeakerSection | None = Field(alias="speaker_encoder_config", default=None)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        ids = (self.im_start_id, self.im_end_id, self.tts_pad_id, self.tts_bos_id, self.tts_eos_id)
        if not all(0 <= i < self.talker.text_vocab_size for i in ids):
            raise ValueError("special token ids must lie within talker_config.text_vocab_size")
        if self.kind == "base":
            if self.speaker is None:
                raise ValueError("a base model needs speaker_encoder_config")
            if self.speaker.enc_dim != self.talker.hidden_size:
                raise ValueError("speaker_encoder_config.enc_dim must be talker_config.hidden_size")
        if self.kind == "custom_voice" and not self.talker.speakers:
            raise ValueError("a custom_voice model needs talker_config.spk_id")
        return self

    @property
    def takes_instructions(self) -> bool:
        """The small model with speakers was not trained on instructions, nor was any that clones."""
        return self.kind == "voice_design" or (self.kind == "custom_voice" and self.size != "0b6")

    @property
    def codebook_size(self) -> int:
        return self.talker.code_predictor.vocab_size

    @property
    def codebooks(self) -> int:
        return self.talker.num_code_groups


class GenerationConfig(_Section):
    """``generation_config.json``: what holds where a request says nothing."""

    do_sample: bool = True
    temperature: Annotated[float, Field(ge=0)] = 0.9
    top_k: Annotated[int, Field(ge=0)] = 50
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    repetition_penalty: PositiveFloat = 1.05
    subtalker_dosample: bool = True
    subtalker_temperature: Annotated[float, Field(ge=0)] = 0.9
    subtalker_top_k: Annotated[int, Field(ge=0)] = 50
    subtalker_top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    max_new_tokens: PositiveInt = 8192


def read_json(file: Path) -> dict[str, Any]:
    """Raises :class:`WeightsError` if the file is missing, broken or holds no object."""
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise WeightsError(f"cannot read {file}: {error}") from error
    if not isinstance(values, dict):
        raise WeightsError(f"{file} does not hold an object")
    return values


def parse_config(values: dict[str, Any]) -> TTSConfig:
    """Raises :class:`WeightsError` naming the fields that do not fit."""
    try:
        return TTSConfig.model_validate(values)
    except ValidationError as error:
        raise WeightsError(f"config.json is not one of a Qwen3-TTS 12 Hz model: {_lines(error)}") from error


def load_config(folder: Path) -> TTSConfig:
    """Raises :class:`WeightsError` if ``config.json`` is missing, broken or of another model."""
    return parse_config(read_json(folder / "config.json"))


def load_generation(folder: Path) -> GenerationConfig:
    """The published values where the folder has no ``generation_config.json``.

    Raises:
        WeightsError: the file is broken.
    """
    file = folder / "generation_config.json"
    if not file.exists():
        return GenerationConfig()
    try:
        return GenerationConfig.model_validate(read_json(file))
    except ValidationError as error:
        raise WeightsError(f"{file}: {_lines(error)}") from error


def _lines(error: ValidationError) -> str:
    return "; ".join(f"{'.'.join(map(str, e['loc'])) or 'file'}: {e['msg']}" for e in error.errors())
