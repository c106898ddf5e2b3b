"""Sampling that does not depend on the batch: counter-based randomness and filters on sorted candidates."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

UniformSource = Callable[[Tensor, Tensor, int, Tensor], Tensor]
"""``(seed (B,), step (B,), stream, ids (B, K)) -> (B, K)`` float32 in (0, 1)."""


def _signed(value: int) -> int:
    """The int64 with the same bits as the 64-bit ``value``."""
    return value - (1 << 64) if value >= 1 << 63 else value


_GAMMA = _signed(0x9E3779B97F4A7C15)
_MIX1 = _signed(0xBF58476D1CE4E5B9)
_MIX2 = _signed(0x94D049BB133111EB)
_STEP = _signed((_GAMMA << 12) % 2**64)
"""Between the keys of two steps lie those of 4096 streams."""


def _shift(x: Tensor, bits: int) -> Tensor:
    """Logical right shift of int64."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _mix(x: Tensor) -> Tensor:
    """Finaliser of splitmix64 (Steele, Lea, Flood 2014); int64 products wrap alike on every device."""
    x = (x ^ _shift(x, 30)) * _MIX1
    x = (x ^ _shift(x, 27)) * _MIX2
    return x ^ _shift(x, 31)


def counter_uniform(seed: Tensor, step: Tensor, stream: int, ids: Tensor) -> Tensor:
    """A uniform number per ``ids`` entry from a hash of (seed, step, stream, id); the same on CPU and CUDA.

    ``stream`` is below 4096. Resolution is 2**-23, never 0 and never 1.
    """
    return keyed_uniform(counter_key(seed, step), stream, ids)


def counter_key(seed: Tensor, step: Tensor) -> Tensor:
    """What :func:`keyed_uniform` takes, int64 ``(B, 1)``; the same for all streams of a step."""
    return (_mix(seed + _GAMMA) + step * _STEP).unsqueeze(-1)


def keyed_uniform(key: Tensor, stream: int, ids: Tensor) -> Tensor:
    """:func:`counter_uniform` for a key made once per step."""
    bits = _shift(_mix(_mix(key + _signed(stream * _GAMMA % 2**64)) + (ids + 1) * _GAMMA), 41)
    return (bits.to(torch.float32) + 0.5) * 2.0**-23


def top_candidates(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The best ``count`` entries of ``(B, V)`` in falling order, all of them for 0: ``(values, ids)``."""
    vocabulary = logits.shape[-1]
    values, ids = logits.topk(min(count, vocabulary) if count else vocabulary, dim=-1, sorted=True)
    return values, ids


def race(probabilities: Tensor, uniform: Tensor) -> Tensor:
    """Exponential race: ``argmax p / -ln u`` ``(B,)`` is a draw from ``p`` ``(B, K)``, which need not sum to 1."""
    return (probabilities / -uniform.log()).argmax(-1)


def standard_filter(values: Tensor, temperature: Tensor, top_p: Tensor, top_k: Tensor) -> Tensor:
    """Temperature, then ``top_k`` (0: off), then nucleus, in the usual order; the entry that crosses ``top_p`` stays.

    ``values`` ``(B, K)`` are sorted candidates, the other arguments ``(B,)``; gives probabilities ``(B, K)``.
    """
    rank = torch.arange(values.shape[-1], device=values.device)
    scaled = values / temperature.clamp_min(1e-5).unsqueeze(-1)
    outside = (rank >= top_k.unsqueeze(-1)) & (top_k > 0).unsqueeze(-1)
    p = scaled.masked_fill(outside, -torch.inf).softmax(-1)
    before = p.cumsum(-1) - p
    nucleus = (before < top_p.unsqueeze(-1)) | (top_p >= 1).unsqueeze(-1) | (rank == 0)
    return torch.where(nucleus, p, 0.0)
