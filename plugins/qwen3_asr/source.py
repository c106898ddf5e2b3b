"""The language model by description: what a stage hands to an engine that builds it in processes of its own."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import torch

from omni.engines.base import ModelShape, ModelSource, Prompt, SamplingParams
from omni.engines.torch import StackFactory
from qwen3_asr.config import AsrConfig
from qwen3_asr.loader import load_asr, open_asr, random_asr
from qwen3_asr.model import AsrModel, check_prompt
from qwen3_asr.sizes import SIZES, SizeName
from qwen3_asr.tokenizer import AsrTokenizer


class AsrSource(ModelSource, kw_only=True, frozen=True):
    """``folder`` holds a checkpoint; or ``random`` weights of a size, drawn with ``random_seed``."""

    folder: str | None = None
    random: SizeName | None = None
    random_seed: int = 0

    def open(self) -> tuple[AsrConfig, AsrTokenizer]:
        """Sizes and tokenizer, without weights. Raises :class:`omni.errors.WeightsError`."""
        return open_model(self.folder, self.random)

    def shape(self) -> ModelShape:
        text = self.open()[0].text
        return ModelShape(0, text.max_position_embeddings, text.stack)

    def check(self, prompt: Prompt, params: SamplingParams) -> None:
        check_prompt(self.open()[0], prompt, params)

    def build(self, make_stack: StackFactory, *, device: torch.device) -> AsrModel:
        dtype = getattr(torch, self.dtype)
        if self.random is not None:
            return random_asr(self.open()[0], self.random_seed, device=device, dtype=dtype, make_stack=make_stack)
        assert self.folder is not None
        return load_asr(Path(self.folder), device=device, dtype=dtype, make_stack=make_stack)[0]


@lru_cache(maxsize=4)
def open_model(folder: str | None, random: SizeName | None) -> tuple[AsrConfig, AsrTokenizer]:
    """Sizes and tokenizer of a checkpoint or of a random model. Raises :class:`omni.errors.WeightsError`."""
    if random is not None:
        return SIZES[random].build()
    assert folder is not None
    return open_asr(Path(folder))
