"""Convolutional building blocks. All are causal and work on ``(batch, channels, time)``; what lies before the first
column comes from the step's state, so a signal may arrive in pieces of any length without changing the result.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fish_s2pro.codec.config import CONVNEXT_RATIO
from fish_s2pro.codec.state import Step
from fish_s2pro.codec.weights import WeightSource, folded

_GEMM_COLUMNS = 128
"""Up to so many output columns a CPU convolution runs as one matrix product: oneDNN reorders the whole weight on
every call, which costs more than the arithmetic when there are few columns to share it."""


class CausalConv:
    """Convolution with ``(kernel - 1) * dilation + 1 - stride`` columns of left context.

    ``weight``: ``(out, in / groups, kernel)``; the input length must be a multiple of ``stride``.
    """

    def __init__(
        self, weight: Tensor, bias: Tensor, *, stride: int = 1, dilation: int = 1, groups: int = 1
    ) -> None:
        self.weight = weight
        self.bias = bias
        self.stride = stride
        self.dilation = dilation
        self.groups = groups
        self.channels = weight.shape[1] * groups
        self.reach = (weight.shape[2] - 1) * dilation + 1
        self.pad = self.reach - stride

    def room(self, length: int, step: Step) -> tuple[Tensor, Tensor]:
        """``(joined, new)``: the convolution's input with its left context filled in, and the view of it where
        ``length`` new columns belong. Writing there saves the copy that :meth:`__call__` makes."""
        joined = step.behind(self, self.channels, self.pad, length)
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
        batch, channels, length = x.shape
        columns = (length - self.reach) // self.stride + 1
        if self.groups == 1 and x.device.type == "cpu" and batch * columns <= _GEMM_COLUMNS:
            windows = x.unfold(2, self.reach, self.stride)[..., :: self.dilation].transpose(1, 2)
            flat = windows.reshape(batch, columns, -1)
            return F.linear(flat, self.weight.view(self.weight.shape[0], -1), self.bias).transpose(1, 2)
        return F.conv1d(x, self.weight, self.bias, self.stride, 0, self.dilation, self.groups)


class UpsampleConv:
    """Transposed convolution of kernel k and stride s whose last k - s outputs are cut.

    Output ``s t + r`` is the sum over j of ``x[t - j] w[:, :, s j + r]``: a causal convolution with ``s`` outputs
    per channel and ``ceil(k / s)`` taps, whose channels are then laid out in time. ``weight``: ``(in, out, k)``.
    """

    def __init__(self, weight: Tensor, bias: Tensor, stride: int) -> None:
        inputs, outputs, kernel = weight.shape
        taps = -(-kernel // stride)
        weight = F.pad(weight, (0, taps * stride - kernel)).view(inputs, outputs, taps, stride)
        weight = weight.flip(2).permute(1, 3, 0, 2).reshape(outputs * stride, inputs, taps)
        self.conv = CausalConv(weight.contiguous(), bias.repeat_interleave(stride))
        self.stride = stride

    def run(self, joined: Tensor, step: Step) -> Tensor:
        return self._in_time(self.conv.run(joined, step))

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        return self._in_time(self.conv(x, step))

    def _in_time(self, y: Tensor) -> Tensor:
        return y.unflatten(1, (-1, self.stride)).transpose(2, 3).flatten(2)


class Snake:
    """``x + sin(a x)^2 / (a + 1e-9)`` with one ``a`` per channel."""

    def __init__(self, weights: WeightSource, prefix: str, channels: int) -> None:
        self.alpha = weights.take(f"{prefix}.alpha", 1, channels, 1)
        self.scale = 1.0 / (self.alpha + 1e-9)

    def __call__(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """``out`` may be ``x`` itself."""
        ripple = (x * self.alpha).sin_().square_()
        return torch.addcmul(x, ripple, self.scale, out=out)


def weight_normed(weights: WeightSource, prefix: str, *shape: int) -> Tensor:
    parametrized = f"{prefix}.conv.parametrizations.weight"
    return folded(weights, f"{parametrized}.original0", f"{parametrized}.original1", *shape)


def weight_normed_conv(
    weights: WeightSource, prefix: str, inputs: int, outputs: int, kernel: int, *, stride: int = 1, dilation: int = 1
) -> CausalConv:
    weight = weight_normed(weights, prefix, outputs, inputs, kernel)
    bias = weights.take(f"{prefix}.conv.bias", outputs)
    return CausalConv(weight, bias, stride=stride, dilation=dilation)


class ResidualUnit:
    """Snake, dilated convolution of kernel 7, Snake, pointwise convolution; plus the input."""

    def __init__(self, weights: WeightSource, prefix: str, channels: int, dilation: int) -> None:
        self.snake1 = Snake(weights, f"{prefix}.block.0", channels)
        self.conv1 = weight_normed_conv(weights, f"{prefix}.block.1", channels, channels, 7, dilation=dilation)
        self.snake2 = Snake(weights, f"{prefix}.block.2", channels)
        self.conv2 = weight_normed_conv(weights, f"{prefix}.block.3", channels, channels, 1)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        joined, new = self.conv1.room(x.shape[-1], step)
        self.snake1(x, out=new)
        y = self.conv1.run(joined, step)
        return self.conv2(self.snake2(y, out=y), step).add_(x)


class ConvNeXt:
    """Depthwise convolution of kernel 7, LayerNorm, two linear layers with GELU; plus the input.

    The block's ``gamma`` is folded into the second linear layer.
    """

    def __init__(self, weights: WeightSource, prefix: str, channels: int) -> None:
        hidden = CONVNEXT_RATIO * channels
        self.depthwise = CausalConv(
            weights.take(f"{prefix}.dwconv.conv.weight", channels, 1, 7),
            weights.take(f"{prefix}.dwconv.conv.bias", channels),
            groups=channels,
        )
        self.norm_weight = weights.take(f"{prefix}.norm.weight", channels)
        self.norm_bias = weights.take(f"{prefix}.norm.bias", channels)
        self.expand = weights.take(f"{prefix}.pwconv1.weight", hidden, channels)
        self.expand_bias = weights.take(f"{prefix}.pwconv1.bias", hidden)
        gamma = weights.take(f"{prefix}.gamma", channels)
        self.reduce = weights.take(f"{prefix}.pwconv2.weight", channels, hidden) * gamma[:, None]
        self.reduce_bias = weights.take(f"{prefix}.pwconv2.bias", channels) * gamma

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        y = self.depthwise(x, step).transpose(1, 2)
        y = F.layer_norm(y, (y.shape[-1],), self.norm_weight, self.norm_bias, 1e-6)
        y = F.gelu(F.linear(y, self.expand, self.expand_bias))
        return F.linear(y, self.reduce, self.reduce_bias).transpose(1, 2) + x
