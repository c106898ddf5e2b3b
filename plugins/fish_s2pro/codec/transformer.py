"""Transformer whose every position sees itself and the ``window - 1`` positions before it."""

from __future__ import annotations

from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

from fish_s2pro.codec.config import TransformerConfig
from omni.codecs import Rotations, Step, WeightSource, WindowView
from omni.engines.torch import linear


def rotations(head_dim: int, base: float, device: torch.device) -> Rotations:
    """Cosine and sine are rounded to bfloat16, as in training."""
    return Rotations(head_dim, base, device, rounding=torch.bfloat16)


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

    def __call__(self, x: Tensor, view: WindowView) -> Tensor:
        """``(batch * time, dim)`` to the same."""
        width = x.shape[1:]
        qkv = linear(F.rms_norm(x, width, self.attention_norm, self.eps), self.wqkv)
        x = linear(view.attend(self, qkv, self.head_dim), self.wo).add_(x)
        gate, up = linear(F.rms_norm(x, width, self.ffn_norm, self.eps), self.w13).chunk(2, dim=1)
        return linear(F.silu(gate).mul_(up), self.w2).add_(x)


class WindowedTransformer:
    """``rate`` positions come per frame; see :class:`omni.codecs.WindowView` for what is kept of them."""

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
        rope: Rotations,
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
            rope=rotations(config.head_dim, config.rope_base, device),
            eps=config.norm_eps,
        )

    def reserve(self, frames: int) -> None:
        """Prepare for streams of so many frames."""
        self.rope.reserve(frames * self.rate)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        """``(batch, dim, time)`` to the same."""
        view = WindowView(self.rope, step, x.shape[-1], window=self.window, rate=self.rate)
        y = x.transpose(1, 2)
        rows = y.reshape(-1, y.shape[2])
        for layer in self.layers:
            rows = layer(rows, view)
        return F.rms_norm(rows, rows.shape[1:], self.norm, self.eps).view(y.shape).transpose(1, 2)
