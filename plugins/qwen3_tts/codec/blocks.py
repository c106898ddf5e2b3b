"""Parts that both halves of the codec have: convolutions by name, attention layers."""

from __future__ import annotations

import torch
from torch import Tensor

from omni.codecs import CausalConv, Linear, Rotations, Step, WeightSource, WindowView, interleaved


def causal_conv(
    weights: WeightSource,
    prefix: str,
    inputs: int,
    outputs: int,
    kernel: int,
    *,
    columns: int,
    stride: int = 1,
    dilation: int = 1,
    groups: int = 1,
) -> CausalConv:
    """A convolution with bias; ``columns``: output columns per frame."""
    weight = weights.take(f"{prefix}.weight", outputs, inputs // groups, kernel)
    bias = weights.take(f"{prefix}.bias", outputs)
    return CausalConv(weight, bias, columns=columns, stride=stride, dilation=dilation, groups=groups)


def scaled_rows(weights: WeightSource, name: str, scale: str, outputs: int, inputs: int) -> Linear:
    """A linear layer without bias whose outputs are multiplied by a layer scale."""
    gain = weights.raw(f"{scale}.scale", outputs)
    return Linear(weights.raw(f"{name}.weight", outputs, inputs).mul_(gain[:, None]).to(weights.dtype))


class Attention:
    """Multi-head attention over a window, without biases; the layer scale is folded into the output projection.

    The checkpoint rotates halves of a head, :class:`WindowView` rotates pairs: rows of q and k are laid out for it.
    """

    def __init__(self, weights: WeightSource, prefix: str, dim: int, width: int, head_dim: int) -> None:
        self.head_dim = head_dim
        q, k, v = (weights.take(f"{prefix}.self_attn.{name}_proj.weight", width, dim) for name in "qkv")
        self.project = Linear(torch.cat((interleaved(q, head_dim), interleaved(k, head_dim), v)))
        scale = f"{prefix}.self_attn_layer_scale"
        self.out = scaled_rows(weights, f"{prefix}.self_attn.o_proj", scale, dim, width)

    def __call__(self, x: Tensor, view: WindowView) -> Tensor:
        """``(batch * time, dim)`` to the same."""
        return self.out(view.attend(self, self.project(x), self.head_dim))


class Positions:
    """How far the layers of a transformer look, and their rotations. ``rate`` positions come per frame."""

    def __init__(self, head_dim: int, base: float, *, window: int, rate: int, device: torch.device) -> None:
        self.rotations = Rotations(head_dim, base, device)
        self.window = window
        self.rate = rate

    def reserve(self, frames: int) -> None:
        """Prepare for streams of so many frames."""
        self.rotations.reserve(frames * self.rate)

    def view(self, step: Step, length: int, window: int | None = None) -> WindowView:
        """For ``length`` new positions; ``window`` in place of the usual one."""
        return WindowView(self.rotations, step, length, window=window or self.window, rate=self.rate)
