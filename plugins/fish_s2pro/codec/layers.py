"""Convolutional building blocks. All are causal and work on ``(batch, channels, time)``; what lies before the first
column comes from the step's state, so a signal may arrive in pieces of any length without changing the result.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fish_s2pro.codec.config import CONVNEXT_RATIO
from fish_s2pro.codec.linear import Linear
from fish_s2pro.codec.state import Step
from fish_s2pro.codec.weights import WeightSource, folded

_PRODUCT_COLUMNS = 32
"""Up to so many output columns a frame, a convolution on a CPU runs as a matrix product: these layers have the large
weights, which oneDNN's convolution would lay out anew in every call."""


class CausalConv:
    """Convolution with ``(kernel - 1) * dilation + 1 - stride`` columns of left context.

    ``weight``: ``(out, in / groups, kernel)``. ``columns``: output columns per frame. The input length must be a
    multiple of ``stride``.
    """

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor,
        *,
        columns: int,
        stride: int = 1,
        dilation: int = 1,
        groups: int = 1,
    ) -> None:
        self.bias = bias
        self.stride = stride
        self.dilation = dilation
        self.groups = groups
        self.channels = weight.shape[1] * groups
        self.reach = (weight.shape[2] - 1) * dilation + 1
        self.pad = self.reach - stride
        self.is_product = groups == 1 and columns <= _PRODUCT_COLUMNS and weight.device.type == "cpu"
        if self.is_product:
            self._product = Linear(weight.transpose(1, 2).flatten(1), bias)
        else:
            self._weight = weight

    def room(self, length: int, step: Step) -> tuple[Tensor, Tensor]:
        """``(joined, new)``: the convolution's input with its left context filled in, and the view of it where
        ``length`` new columns belong. Writing there saves the copy that :meth:`__call__` makes."""
        joined = step.behind(self, self.channels, self.pad, length, channels_last=self.is_product)
        return joined, joined[..., self.pad :]

    def run(self, joined: Tensor, step: Step) -> Tensor:
        step.keep(self, joined, self.pad)
        return self._convolve(joined)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        if not self.pad:
            return self._convolve(x)
        joined, new = self.room(x.shape[-1], step)
        new.copy_(x)
        return self.run(joined, step)

    def _convolve(self, x: Tensor) -> Tensor:
        if not self.is_product:
            return F.conv1d(x, self._weight, self.bias, self.stride, 0, self.dilation, self.groups)
        windows = x.transpose(1, 2).unfold(1, self.reach, self.stride)[..., :: self.dilation]
        return self._product(windows.transpose(2, 3).flatten(2)).transpose(1, 2)


class UpsampleConv:
    """Transposed convolution of kernel k and stride s whose last k - s outputs are cut.

    Output ``s t + r`` is the sum over j of ``x[t - j] w[:, :, s j + r]``: a causal convolution with ``s`` outputs
    per channel and ``ceil(k / s)`` taps, whose channels are then laid out in time. ``weight``: ``(in, out, k)``.
    ``columns``: input columns per frame.
    """

    def __init__(self, weight: Tensor, bias: Tensor, stride: int, *, columns: int) -> None:
        inputs, outputs, kernel = weight.shape
        taps = -(-kernel // stride)
        weight = F.pad(weight, (0, taps * stride - kernel)).view(inputs, outputs, taps, stride)
        weight = weight.flip(2).permute(1, 3, 0, 2).reshape(outputs * stride, inputs, taps)
        self.conv = CausalConv(weight, bias.repeat_interleave(stride), columns=columns)
        self.stride = stride

    def run(self, joined: Tensor, step: Step) -> Tensor:
        return self._in_time(self.conv.run(joined, step))

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        return self._in_time(self.conv(x, step))

    def _in_time(self, y: Tensor) -> Tensor:
        batch, channels, length = y.shape
        outputs = channels // self.stride
        return y.reshape(batch, outputs, self.stride, length).transpose(2, 3).reshape(batch, outputs, -1)


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
