"""Transformer whose every position sees itself and the ``window - 1`` positions before it."""

from __future__ import annotations

from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

from fish_s2pro.codec.config import TransformerConfig
from fish_s2pro.codec.state import Step
from fish_s2pro.codec.weights import WeightSource


class Rope:
    """Rotations of interleaved pairs by ``position / base^(2j / head_dim)``.

    Cosine and sine are rounded to bfloat16 as in training; the rotation itself is float32. The table is made on
    the CPU whatever the device, so that its rounding never differs.
    """

    def __init__(self, head_dim: int, base: float, device: torch.device) -> None:
        exponent = torch.arange(0, head_dim, 2).float() / head_dim
        self._frequencies = 1.0 / base**exponent
        self._device = device
        self._table = self._make(4096)

    def _make(self, length: int) -> Tensor:
        angles = torch.outer(torch.arange(length).float(), self._frequencies)
        table = torch.polar(torch.ones_like(angles), angles)
        rounded = torch.view_as_real(table).bfloat16().float()
        return torch.view_as_complex(rounded).to(self._device)

    def reserve(self, length: int) -> None:
        """Make room for positions below ``length``."""
        have = self._table.shape[0]
        if length > have:
            self._table = self._make(max(length, 2 * have))

    def __call__(self, positions: Tensor) -> Tensor:
        """complex64 rotations ``(..., head_dim / 2)`` of int64 positions."""
        return self._table[positions]


def rotate(x: Tensor, rotations: Tensor) -> Tensor:
    """Rotate the interleaved pairs of the last dimension; ``rotations`` broadcasts over the others."""
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * rotations).flatten(-2).to(x.dtype)


class _View:
    """What all layers share in one step: where keys go in the ring, what each query sees, the rotations."""

    __slots__ = ("mask", "places", "ring", "rotations")

    def __init__(self, rope: Rope, window: int, ring: int, first: Tensor, length: int) -> None:
        """``first``: int64 ``(batch,)``, position of each stream's first new element."""
        self.ring = ring
        positions = first[:, None] + torch.arange(length, device=first.device)
        self.places = positions % ring
        self.rotations = rope(positions)[:, :, None, None]
        # A place of the ring holds the newest position that maps to it.
        newest = positions[:, -1:]
        held = newest - (newest - torch.arange(ring, device=first.device)) % ring
        held = held[:, None]
        query = positions[:, :, None]
        self.mask = ((held >= 0) & (held <= query) & (held > query - window))[:, None]


class _Layer:
    """Pre-norm attention and SwiGLU. The layer scales are folded into the two output projections."""

    def __init__(self, weights: WeightSource, prefix: str, dim: int, hidden: int, head_dim: int, eps: float) -> None:
        self.eps = eps
        self.head_dim = head_dim
        self.attention_norm = weights.take(f"{prefix}.attention_norm.weight", dim)
        self.ffn_norm = weights.take(f"{prefix}.ffn_norm.weight", dim)
        self.wqkv = weights.take(f"{prefix}.attention.wqkv.weight", 3 * dim, dim)
        scale = weights.take(f"{prefix}.attention_layer_scale.gamma", dim)
        self.wo = weights.take(f"{prefix}.attention.wo.weight", dim, dim).mul_(scale[:, None])
        self.w13 = torch.cat([weights.take(f"{prefix}.feed_forward.{w}.weight", hidden, dim) for w in ("w1", "w3")])
        scale = weights.take(f"{prefix}.ffn_layer_scale.gamma", dim)
        self.w2 = weights.take(f"{prefix}.feed_forward.w2.weight", dim, hidden).mul_(scale[:, None])

    def __call__(self, x: Tensor, step: Step, view: _View) -> Tensor:
        x = x + self._attend(F.rms_norm(x, (x.shape[-1],), self.attention_norm, self.eps), step, view)
        gate, up = F.linear(F.rms_norm(x, (x.shape[-1],), self.ffn_norm, self.eps), self.w13).chunk(2, dim=-1)
        return x + F.linear(F.silu(gate) * up, self.w2)

    def _attend(self, y: Tensor, step: Step, view: _View) -> Tensor:
        qkv = F.linear(y, self.wqkv).unflatten(-1, (3, -1, self.head_dim))
        q, k = rotate(qkv[:, :, :2], view.rotations).unbind(2)
        ring = step.state.buffer(self, view.ring, 2, *k.shape[2:])
        ring[step.index[:, None], view.places] = torch.stack((k, qkv[:, :, 2]), dim=2)
        keys, values = ring[step.rows].transpose(1, 3).unbind(2)
        heads = F.scaled_dot_product_attention(q.transpose(1, 2), keys, values, attn_mask=view.mask)
        return F.linear(heads.transpose(1, 2).flatten(2), self.wo)


class WindowedTransformer:
    """``rate`` positions come per frame. The keys and values of the last ``window - 1`` positions live in the
    state, rotated by their absolute positions; a ring holds one step's positions more than that, so a step never
    overwrites what its own queries still see."""

    def __init__(
        self,
        weights: WeightSource,
        prefix: str,
        *,
        layers: int,
        dim: int,
        hidden: int,
        head_dim: int,
        window: int,
        rate: int,
        rope: Rope,
        eps: float,
    ) -> None:
        self.window = window
        self.rate = rate
        self.rope = rope
        self.eps = eps
        self.layers = [
            _Layer(weights, f"{prefix}.layers.{i}", dim, hidden, head_dim, eps) for i in range(layers)
        ]
        self.norm = weights.take(f"{prefix}.norm.weight", dim)

    @classmethod
    def for_quantizer(
        cls, weights: WeightSource, prefix: str, config: TransformerConfig, device: torch.device
    ) -> Self:
        """The transformers on either side of the quantiser: one position per frame."""
        return cls(
            weights,
            prefix,
            layers=config.n_layer,
            dim=config.dim,
            hidden=config.intermediate_size,
            head_dim=config.head_dim,
            window=config.window_size,
            rate=1,
            rope=Rope(config.head_dim, config.rope_base, device),
            eps=config.norm_eps,
        )

    def reserve(self, frames: int) -> None:
        """Prepare for streams of so many frames."""
        self.rope.reserve(frames * self.rate)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        """``(batch, dim, time)`` to the same."""
        ring = self.window - 1 + step.state.max_frames * self.rate
        view = _View(self.rope, self.window, ring, step.seen * self.rate, x.shape[-1])
        y = x.transpose(1, 2)
        for layer in self.layers:
            y = layer(y, step, view)
        return F.rms_norm(y, (y.shape[-1],), self.norm, self.eps).transpose(1, 2)
