"""The forced aligner: one pass over audio and text gives a time for the beginning and the end of every unit."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from omni.engines.torch import Attend
from qwen3_asr.config import AlignerConfig
from qwen3_asr.model import TextModel
from qwen3_asr.tokenizer import AUDIO_END, AUDIO_PAD, AUDIO_START, AsrTokenizer


def prompt_ids(tokenizer: AsrTokenizer, timestamp_id: int, units: Sequence[str], audio: int) -> list[int]:
    """``audio`` audio positions, then every unit with two timestamps after it; a text without units has one pair."""
    ids = [tokenizer.id(AUDIO_START), *[tokenizer.id(AUDIO_PAD)] * audio, tokenizer.id(AUDIO_END)]
    for unit in units or ("",):
        ids += (*tokenizer.encode(unit), timestamp_id, timestamp_id)
    return ids


class Aligner(TextModel):
    """A causal language model whose head knows ``config.classes`` multiples of ``config.timestamp_ms``."""

    def __init__(self, config: AlignerConfig, *, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(config.text, device=device, dtype=dtype, outputs=config.classes)
        self.config = config

    @torch.inference_mode()
    def timestamp_logits(self, prompts: Sequence[Sequence[int]], audio: Sequence[Tensor]) -> list[Tensor]:
        """Float32 ``(2 * units, classes)`` for each prompt, one row per timestamp. ``audio``: embeddings of each."""
        tokens = [torch.tensor(prompt, device=self.device) for prompt in prompts]
        lengths = [len(prompt) for prompt in prompts]
        inputs = [
            self.with_audio(part, embeds, self.config.audio_pad_id) for part, embeds in zip(tokens, audio, strict=True)
        ]
        positions = torch.cat([torch.arange(n, device=self.device) for n in lengths])
        hidden = self.stack(torch.cat(inputs), positions, causal(lengths))
        asked = torch.cat(tokens) == self.config.timestamp_id
        counts = [int((part == self.config.timestamp_id).sum()) for part in tokens]
        return list(torch.split(self.logits(hidden[asked]), counts))


def causal(lengths: Sequence[int]) -> Attend:
    """Attention of sequences that lie in a row, each within itself, nothing kept."""

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out = []
        for query, key, value in zip(*(torch.split(x, list(lengths)) for x in (q, k, v)), strict=True):
            n, heads, dim = query.shape
            share = heads // key.shape[1]
            mixed = F.scaled_dot_product_attention(
                query.transpose(0, 1),
                key.transpose(0, 1).repeat_interleave(share, 0),
                value.transpose(0, 1).repeat_interleave(share, 0),
                is_causal=True,
            )
            out.append(mixed.transpose(0, 1).reshape(n, heads * dim))
        return torch.cat(out)

    return attend
