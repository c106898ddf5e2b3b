"""Sizes of models with random weights: for benchmarks, and to try the API without weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from qwen3_asr.config import AlignerConfig, AsrConfig, parse_aligner, parse_asr
from qwen3_asr.tokenizer import END_OF_TEXT, IM_END, TIMESTAMP, AsrTokenizer, bytes_only

SizeName = Literal["tiny", "small", "0.6b", "1.7b"]


@dataclass(frozen=True)
class Size:
    """Widths and layers of the encoder and of the language model."""

    d_model: int
    encoder_layers: int
    encoder_heads: int
    encoder_ffn: int
    channels: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int

    def build(self) -> tuple[AsrConfig, AsrTokenizer]:
        """A config of this size and a tokenizer of single bytes that fits it."""
        tokenizer = bytes_only()
        thinker = {"model_type": "qwen3_asr", "audio_token_id": tokenizer.audio_pad, **self._sections()}
        values = {"model_type": "qwen3_asr", "thinker_config": thinker}
        return parse_asr(values, (tokenizer.id(IM_END), tokenizer.id(END_OF_TEXT))), tokenizer

    def build_aligner(self) -> tuple[AlignerConfig, AsrTokenizer]:
        """The same of a forced aligner."""
        tokenizer = bytes_only(TIMESTAMP)
        thinker = {"model_type": "qwen3_forced_aligner", "audio_token_id": tokenizer.audio_pad, "classify_num": 5000}
        values = {
            "model_type": "qwen3_asr",
            "thinker_config": thinker | self._sections(),
            "timestamp_token_id": tokenizer.id(TIMESTAMP),
            "timestamp_segment_time": 80,
        }
        return parse_aligner(values), tokenizer

    def _sections(self) -> dict[str, Any]:
        return {
            "audio_config": {
                "d_model": self.d_model,
                "encoder_layers": self.encoder_layers,
                "encoder_attention_heads": self.encoder_heads,
                "encoder_ffn_dim": self.encoder_ffn,
                "downsample_hidden_size": self.channels,
                "output_dim": self.hidden,
                "num_mel_bins": 128,
                "n_window": 50,
                "n_window_infer": 800,
            },
            "text_config": {
                "vocab_size": self.vocabulary,
                "hidden_size": self.hidden,
                "intermediate_size": self.intermediate,
                "num_hidden_layers": self.layers,
                "num_attention_heads": self.heads,
                "num_key_value_heads": self.kv_heads,
                "head_dim": self.head_dim,
                "rms_norm_eps": 1e-6,
                "rope_theta": 1e6,
                "max_position_embeddings": 65536,
                "tie_word_embeddings": True,
            },
        }


SIZES: dict[SizeName, Size] = {
    "tiny": Size(32, 2, 2, 64, 8, 64, 160, 2, 4, 2, 16, 320),
    "small": Size(256, 4, 4, 1024, 64, 1024, 3072, 12, 16, 8, 64, 32_768),
    "0.6b": Size(896, 18, 14, 3584, 480, 1024, 3072, 28, 16, 8, 128, 151_936),
    "1.7b": Size(1024, 24, 16, 4096, 480, 2048, 6144, 28, 16, 8, 128, 151_936),
}
"""``small`` has about 200 M parameters; the last two have those of the published models."""
