"""Convolutional building blocks of this codec on ``(batch, channels, time)``."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fish_s2pro.codec.config import CONVNEXT_RATIO
from fish_s2pro.codec.weights import folded
from omni.codecs import CausalConv, Linear, Step, WeightSource


class Snake:
    """``x + sin(a x)^2 / (a + 1e-9)`` with one ``a`` per channel."""

    def __init__(self, weights: WeightSource, prefix: str, channels: int) -> None:
        alpha = weights.raw(f"{prefix}.alpha", 1, channels, 1)
        self.alpha = alpha.to(weights.dtype)
        self.scale = (1.0 / (alpha + 1e-9)).to(weights.dtype)

    def __call__(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """``out`` may be ``x`` itself."""
        ripple = (x * self.alpha).sin_().square_()
        return torch.addcmul(x, ripple, self.scale, out=out)


def weight_normed(weights: WeightSource, prefix: str, *shape: int) -> Tensor:
    parametrized = f"{prefix}.conv.parametrizations.weight"
    return folded(weights, f"{parametrized}.original0", f"{parametrized}.original1", *shape)


def weight_normed_conv(
    weights: WeightSource,
    prefix: str,
    inputs: int,
    outputs: int,
    kernel: int,
    *,
    columns: int,
    stride: int = 1,
    dilation: int = 1,
) -> CausalConv:
    weight = weight_normed(weights, prefix, outputs, inputs, kernel)
    bias = weights.take(f"{prefix}.conv.bias", outputs)
    return CausalConv(weight, bias, columns=columns, stride=stride, dilation=dilation)


class ResidualUnit:
    """Snake, dilated convolution of kernel 7, Snake, pointwise convolution; plus the input."""

    def __init__(self, weights: WeightSource, prefix: str, channels: int, dilation: int, *, columns: int) -> None:
        self.snake1 = Snake(weights, f"{prefix}.block.0", channels)
        self.conv1 = weight_normed_conv(
            weights, f"{prefix}.block.1", channels, channels, 7, columns=columns, dilation=dilation
        )
        self.snake2 = Snake(weights, f"{prefix}.block.2", channels)
        self.conv2 = weight_normed_conv(weights, f"{prefix}.block.3", channels, channels, 1, columns=columns)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        joined, new = self.conv1.room(x.shape[-1], step)
        self.snake1(x, out=new)
        y = self.conv1.run(joined, step)
        return self.conv2(self.snake2(y, out=y), step).add_(x)


class ConvNeXt:
    """Depthwise convolution of kernel 7, LayerNorm, two linear layers with GELU; plus the input.

    The block's ``gamma`` is folded into the second linear layer.
    """

    def __init__(self, weights: WeightSource, prefix: str, channels: int, *, columns: int) -> None:
        hidden = CONVNEXT_RATIO * channels
        self.depthwise = CausalConv(
            weights.take(f"{prefix}.dwconv.conv.weight", channels, 1, 7),
            weights.take(f"{prefix}.dwconv.conv.bias", channels),
            columns=columns,
            groups=channels,
        )
        self.norm_weight = weights.take(f"{prefix}.norm.weight", channels)
        self.norm_bias = weights.take(f"{prefix}.norm.bias", channels)
        self.expand = Linear(
            weights.take(f"{prefix}.pwconv1.weight", hidden, channels), weights.take(f"{prefix}.pwconv1.bias", hidden)
        )
        gamma = weights.raw(f"{prefix}.gamma", channels)
        self.reduce = Linear(
            weights.raw(f"{prefix}.pwconv2.weight", channels, hidden).mul_(gamma[:, None]).to(weights.dtype),
            weights.raw(f"{prefix}.pwconv2.bias", channels).mul_(gamma).to(weights.dtype),
        )

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        y = self.depthwise(x, step).transpose(1, 2)
        y = F.layer_norm(y, (y.shape[-1],), self.norm_weight, self.norm_bias, 1e-6)
        y = F.gelu(self.expand(y))
        return self.reduce(y).transpose(1, 2) + x
