"""A configuration in the terms of the engine's building blocks."""

from __future__ import annotations

from omni.engines.torch import BlockDims, StackDims
from qwen3_tts.config import BlockSection, TTSConfig


def _block(section: BlockSection) -> BlockDims:
    return BlockDims(
        dim=section.hidden_size,
        heads=section.num_attention_heads,
        kv_heads=section.num_key_value_heads,
        head_dim=section.head_dim,
        ffn=section.intermediate_size,
        eps=section.rms_norm_eps,
        qk_norm=True,
    )


def predictor_block(config: TTSConfig) -> BlockDims:
    """One layer of the code predictor."""
    return _block(config.talker.code_predictor)


def talker_stack(config: TTSConfig) -> StackDims:
    """The talker. Its three rotary sections all get the same position, which is ordinary rotary embedding."""
    talker = config.talker
    return StackDims(
        _block(talker),
        talker.num_hidden_layers,
        talker.max_position_embeddings,
        talker.rope_theta,
        rope_interleaved=False,
    )
