"""The talker by description: what a stage hands to an engine that builds it in processes of its own."""

from __future__ import annotations

from pathlib import Path

import torch

from omni.engines.base import ModelShape, ModelSource, Prompt, SamplingParams
from omni.engines.torch import StackFactory
from qwen3_tts.config import Kind, TTSConfig
from qwen3_tts.dims import talker_stack
from qwen3_tts.loader import load_talker, random_talker
from qwen3_tts.model import Talker, check_prompt
from qwen3_tts.origin import RandomModel, describe
from qwen3_tts.sizes import SizeName


class TalkerSource(ModelSource, kw_only=True, frozen=True):
    """``folder`` holds a checkpoint; or random weights of a ``size`` and ``kind``, drawn with ``seed``."""

    folder: str | None = None
    size: SizeName = "tiny"
    kind: Kind = "custom_voice"
    seed: int = 0

    def config(self) -> TTSConfig:
        """Without reading weights. Raises :class:`omni.errors.WeightsError`."""
        if self.folder is not None:
            return describe(Path(self.folder), None).config
        return describe(None, RandomModel(size=self.size, kind=self.kind)).config

    def shape(self) -> ModelShape:
        config = self.config()
        return ModelShape(config.codebooks, config.talker.max_position_embeddings, talker_stack(config))

    def check(self, prompt: Prompt, params: SamplingParams) -> None:
        check_prompt(self.config(), prompt, params)

    def build(self, make_stack: StackFactory, *, device: torch.device) -> Talker:
        dtype = getattr(torch, self.dtype)
        if self.folder is not None:
            return load_talker(Path(self.folder), device=device, dtype=dtype, make_stack=make_stack)
        return random_talker(self.config(), self.seed, device=device, dtype=dtype, make_stack=make_stack)
