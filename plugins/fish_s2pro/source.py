"""The AR model by description: what a stage hands to an engine that builds it in processes of its own."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import torch

from fish_s2pro.config import FishConfig
from fish_s2pro.loader import load_ar, open_folder, random_ar
from fish_s2pro.model import DualAR, check_prompt
from fish_s2pro.sizes import SIZES, SizeName
from fish_s2pro.tokenizer import FishTokenizer
from omni.engines.base import ModelShape, ModelSource, Prompt, SamplingParams
from omni.engines.torch import StackFactory


class DualARSource(ModelSource, kw_only=True, frozen=True):
    """``folder`` holds a checkpoint; or ``random`` weights of a size, drawn with ``random_seed``."""

    folder: str | None = None
    random: SizeName | None = None
    random_seed: int = 0

    def open(self) -> tuple[FishConfig, FishTokenizer]:
        """Sizes and tokenizer, without weights. Raises :class:`omni.errors.WeightsError`."""
        return _open(self.folder, self.random)

    def shape(self) -> ModelShape:
        config, _ = self.open()
        return ModelShape(config.codebooks, config.text.max_seq_len, config.stack)

    def check(self, prompt: Prompt, params: SamplingParams) -> None:
        check_prompt(self.open()[0], prompt, params)

    def build(self, make_stack: StackFactory, *, device: torch.device) -> DualAR:
        dtype = getattr(torch, self.dtype)
        if self.random is not None:
            return random_ar(self.open()[0], self.random_seed, device=device, dtype=dtype, make_stack=make_stack)
        assert self.folder is not None
        return load_ar(Path(self.folder), device=device, dtype=dtype, make_stack=make_stack)[0]


@lru_cache(maxsize=4)
def _open(folder: str | None, random: SizeName | None) -> tuple[FishConfig, FishTokenizer]:
    if random is not None:
        return SIZES[random].build()
    assert folder is not None
    return open_folder(Path(folder))
