"""The five abstract stages."""

from omni.stages.base import Stage, StageContext, StageOptions
from omni.stages.kinds import (
    AR,
    Aggregator,
    AROptions,
    DecodeJob,
    Decoder,
    DecoderOptions,
    Encoder,
    EncoderOptions,
    Preprocess,
    PreprocessOptions,
)

__all__ = [
    "AR",
    "AROptions",
    "Aggregator",
    "DecodeJob",
    "Decoder",
    "DecoderOptions",
    "Encoder",
    "EncoderOptions",
    "Preprocess",
    "PreprocessOptions",
    "Stage",
    "StageContext",
    "StageOptions",
]
