"""Sizes of models with random weights: for benchmarks, and to try the API without weights."""

from __future__ import annotations

from typing import Any, Literal, get_args

from qwen3_tts.config import Kind, TTSConfig, parse_config
from qwen3_tts.voices import LANGUAGES, SPEAKERS

SizeName = Literal["tiny", "small", "0.6b", "1.7b"]

_SHAPES: dict[SizeName, tuple[int, int, int, int, int, int, int]] = {
    # talker width, its ffn, layers; depth width, its ffn, layers; width of a head
    "tiny": (64, 160, 2, 64, 160, 1, 16),
    "small": (768, 2304, 16, 768, 2304, 4, 64),
    "0.6b": (1024, 3072, 28, 1024, 3072, 5, 128),
    "1.7b": (2048, 6144, 28, 1024, 3072, 5, 128),
}
"""``small`` has about 200 M parameters; the others but ``tiny`` are the published sizes."""


def size_config(size: SizeName, kind: Kind = "custom_voice") -> TTSConfig:
    """A configuration of the published form, with the published names and ids of the codec track; text is bytes but for
    the published sizes, whose table of text is full."""
    assert size in get_args(SizeName)
    width, ffn, layers, depth_width, depth_ffn, depth_layers, head = _SHAPES[size]
    full = size in ("0.6b", "1.7b")
    shared: dict[str, Any] = {
        "num_attention_heads": 16 if full else width // head,
        "num_key_value_heads": 8 if full else max(1, width // head // 2),
        "head_dim": head,
        "num_code_groups": 16,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
    }
    languages = {name: 2050 + place for place, name in enumerate((*LANGUAGES, "beijing_dialect", "sichuan_dialect"))}
    speakers = {name: 2861 + place for place, name in enumerate(SPEAKERS)}
    return parse_config(
        {
            "model_type": "qwen3_tts",
            "tokenizer_type": "qwen3_tts_tokenizer_12hz",
            "tts_model_type": kind,
            "tts_model_size": "1b7" if size == "1.7b" else "0b6",
            **{name: 256 + place for place, name in enumerate(("im_start_token_id", "im_end_token_id"))},
            **{f"tts_{name}_token_id": 258 + place for place, name in enumerate(("pad", "bos", "eos"))},
            "speaker_encoder_config": {"enc_dim": width} if kind == "base" else None,
            "talker_config": {
                **shared,
                "hidden_size": width,
                "intermediate_size": ffn,
                "num_hidden_layers": layers,
                "vocab_size": 3072,
                "text_hidden_size": 2048 if full else width,
                "text_vocab_size": 151_936 if full else 264,
                "max_position_embeddings": 32_768,
                "code_predictor_config": {
                    **shared,
                    "hidden_size": depth_width,
                    "intermediate_size": depth_ffn,
                    "num_hidden_layers": depth_layers,
                    "vocab_size": 2048,
                    "max_position_embeddings": 65_536,
                },
                "codec_pad_id": 2148,
                "codec_bos_id": 2149,
                "codec_eos_token_id": 2150,
                "codec_think_id": 2154,
                "codec_nothink_id": 2155,
                "codec_think_bos_id": 2156,
                "codec_think_eos_id": 2157,
                "codec_language_id": languages,
                "spk_id": speakers if kind == "custom_voice" else {},
                "spk_is_dialect": {"eric": "sichuan_dialect", "dylan": "beijing_dialect"}
                if kind == "custom_voice"
                else {},
            },
        }
    )
