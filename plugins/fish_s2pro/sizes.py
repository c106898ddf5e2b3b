"""Sizes of models with random weights: for benchmarks, and to try the API without weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from fish_s2pro.config import FishConfig, parse_config
from fish_s2pro.loader import with_tokenizer
from fish_s2pro.tokenizer import FishTokenizer

SizeName = Literal["tiny", "small", "full"]


@dataclass(frozen=True)
class Size:
    """Layers and widths; ``semantic`` tokens, a vocabulary of text beside them, ``heads`` of ``head_dim``."""

    layers: int
    depth_layers: int
    dim: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    codebooks: int
    semantic: int
    vocabulary: int

    def build(self) -> tuple[FishConfig, FishTokenizer]:
        """A config of this size and a byte-level tokenizer that fits it."""
        tokenizer = FishTokenizer.bytes_only(self.semantic)
        block: dict[str, Any] = {
            "dim": self.dim,
            "n_head": self.heads,
            "n_local_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "intermediate_size": self.ffn,
        }
        config = parse_config(
            {
                "model_type": "fish_qwen3_omni",
                "text_config": {
                    **block,
                    "vocab_size": self.vocabulary,
                    "n_layer": self.layers,
                    "rope_base": 1e6,
                    "norm_eps": 1e-6,
                    "max_seq_len": 32768,
                    "attention_qk_norm": True,
                },
                "audio_decoder_config": {
                    **block,
                    "vocab_size": self.semantic,
                    "num_codebooks": self.codebooks,
                    "n_layer": self.depth_layers,
                    "attention_qk_norm": False,
                },
                "eos_token_id": tokenizer.im_end,
                "semantic_start_token_id": tokenizer.semantic_begin,
                "semantic_end_token_id": tokenizer.semantic_end,
            }
        )
        return with_tokenizer(config, tokenizer), tokenizer


SIZES: dict[SizeName, Size] = {
    "tiny": Size(2, 1, 64, 160, 4, 2, 32, 10, 4096, 4608),
    "small": Size(12, 4, 1024, 2560, 16, 4, 64, 10, 4096, 12288),
    "full": Size(36, 4, 2560, 9728, 32, 8, 128, 10, 4096, 155776),
}
"""``small`` has about 230 M parameters, ``full`` the published model's 4.6 G."""
