"""What stages know of a model before its weights: those of a folder, or random ones."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from omni import StageContext, WeightsError
from qwen3_tts.config import GenerationConfig, Kind, TTSConfig, load_config, load_generation
from qwen3_tts.sizes import SizeName, size_config
from qwen3_tts.tokenizer import QwenTokenizer


class RandomModel(BaseModel):
    """Random weights in place of a checkpoint, drawn with ``seed``: of a talker of that size and kind, and of a codec
    of a fraction of the published widths."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    size: SizeName = "tiny"
    kind: Kind = "custom_voice"
    seed: Annotated[int, Field(ge=0)] = 0
    codec_width: Annotated[float, Field(gt=0, le=1)] = 0.125


@dataclass(frozen=True)
class Description:
    config: TTSConfig
    tokenizer: QwenTokenizer
    generation: GenerationConfig


def weights_folder(context: StageContext) -> Path:
    """The folder that a stage loads from.

    Raises:
        WeightsError: the recipe has none.
    """
    if context.weights is None:
        raise WeightsError(f"stage {context.stage!r} needs weights: name a folder with --weights")
    return context.weights


@lru_cache(maxsize=4)
def describe(folder: Path | None, random: RandomModel | None) -> Description:
    """What is known of a folder's model, or of a random one.

    Raises:
        WeightsError: a file is missing, broken, or does not fit the others.
    """
    if random is not None:
        return Description(size_config(random.size, random.kind), QwenTokenizer.bytes_only(), GenerationConfig())
    assert folder is not None
    config, tokenizer = load_config(folder), QwenTokenizer.load(folder)
    if tokenizer.size > config.talker.text_vocab_size:
        raise WeightsError(f"vocab.json has {tokenizer.size} ids, the weights have {config.talker.text_vocab_size}")
    return Description(config, tokenizer, load_generation(folder))


def describe_stage(context: StageContext, random: RandomModel | None) -> Description:
    """Raises :class:`WeightsError`, also where there is neither a folder nor a random model."""
    return describe(None if random is not None else weights_folder(context), random)
