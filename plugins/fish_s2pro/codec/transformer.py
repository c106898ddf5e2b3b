"""Transformer whose every position sees itself and the ``window - 1`` positions before it."""

from __future__ import annotations

from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

from fish_s2pro.codec.config import TransformerConfig
from fish_s2pro.codec.state import Step
from fish_s2pro.codec.weights import WeightSource
from omni.engines.torch import linear


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


class _View:
    """What all layers share in one step: where keys go in the ring, what each query sees, the rotations."""

    __slots__ = ("mask", "places", "ring", "rotations")

    def __init__(self, rope: Rope, window: int, ring: int, first: Tensor, length: int) -> None:
        """``first``: int64 ``(batch,)``, position of each stream's first new element."""
        self.ring = ring
        positions = first[:, None] + torch.arange(length, device=first.device)
        self.places = positions % ring
        turn = rope(positions)
        # Queries and keys are turned, values stay.
        self.rotations = torch.stack((turn, turn, torch.ones_like(turn)), dim=2)[:, :, :, None]
        # A place of the ring holds the newest position that maps to it.
        newest = positions[:, -1:]
        held = newest - (newest - torch.arange(ring, device=first.device)) % ring
        held = held[:, None]
        query = positions[:, :, None]
        self.mask = ((held >= 0) & (held <= query) & (held > query - window))[:, None]


def _scaled(weights: WeightSource, linear: str, scale: str, outputs: int, inputs: int) -> Tensor:
    """The weight of a linear layer whose outputs are multiplied by a layer scale."""
    gamma = weights.raw(f"{scale}.gamma", outputs)
    return weights.raw(f"{linear}.weight", outputs, inputs).mul_(gamma[:, None]).to(weights.dtype)


class _Layer:
    """Pre-norm attention and SwiGLU. The layer scales are folded into the two output projections."""

    def __init__(self, weights: WeightSource, prefix: str, dim: int, hidden: int, head_dim: int, eps: float) -> None:
        self.eps = eps
        self.head_dim = head_dim
        self.attention_norm = weights.take(f"{prefix}.attention_norm.weight", dim)
        self.ffn_norm = weights.take(f"{prefix}.ffn_norm.weight", dim)
        self.wqkv = weights.take(f"{prefix}.attention.wqkv.weight", 3 * dim, dim)
        self.wo = _scaled(weights, f"{prefix}.attention.wo", f"{prefix}.attention_layer_scale", dim, dim)
        gate_and_up = [weights.take(f"{prefix}.feed_forward.{w}.weight", hidden, dim) for w in ("w1", "w3")]
        self.w13 = torch.cat(gate_and_up)
        self.w2 = _scaled(weights, f"{prefix}.feed_forward.w2", f"{prefix}.ffn_layer_scale", dim, hidden)

    def __call__(self, x: Tensor, step: Step, view: _View) -> Tensor:
        """``(batch * time, dim)`` to the same."""
        width = x.shape[1:]
        x = self._attend(F.rms_norm(x, width, self.attention_norm, self.eps), step, view).add_(x)
        gate, up = linear(F.rms_norm(x, width, self.ffn_norm, self.eps), self.w13).chunk(2, dim=1)
        return linear(F.silu(gate).mul_(up), self.w2).add_(x)

    def _attend(self, y: Tensor, step: Step, view: _View) -> Tensor:
        batch, time = view.places.shape
        pairs = linear(y, self.wqkv).float().view(batch, time, 3, -1, self.head_dim // 2, 2)
        turned = torch.view_as_real(torch.view_as_complex(pairs) * view.rotations)
        qkv = turned.view(batch, time, 3, -1, self.head_dim).to(y.dtype)
        ring = step.state.buffer(self, view.ring, 2, *qkv.shape[3:])
        ring[step.index[:, None], view.places] = qkv[:, :, 1:]
        keys, values = ring[step.rows].transpose(1, 3).unbind(2)
        heads = F.scaled_dot_product_attention(qkv[:, :, 0].transpose(1, 2), keys, values, attn_mask=view.mask)
        return linear(heads.transpose(1, 2).reshape(y.shape), self.wo)


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
        self.layers = [_Layer(weights, f"{prefix}.layers.{i}", dim, hidden, head_dim, eps) for i in range(layers)]
        self.norm = weights.take(f"{prefix}.norm.weight", dim)

    @classmethod
    def for_quantizer(cls, weights: WeightSource, prefix: str, config: TransformerConfig, device: torch.device) -> Self:
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
        rows = y.reshape(-1, y.shape[2])
        for layer in self.layers:
            rows = layer(rows, step, view)
        return F.rms_norm(rows, rows.shape[1:], self.norm, self.eps).view(y.shape).transpose(1, 2)
