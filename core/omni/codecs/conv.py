"""Causal convolutions on ``(batch, channels, time)``; what lies before the first column comes from the step's state."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from omni.codecs.linear import Linear
from omni.codecs.state import Step

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
        bias: Tensor | None,
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
