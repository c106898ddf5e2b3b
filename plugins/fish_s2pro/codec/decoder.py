"""Codes to waveform."""

from __future__ import annotations

import torch
from torch import Tensor

from fish_s2pro.codec.config import CodecConfig
from fish_s2pro.codec.layers import ConvNeXt, ResidualUnit, Snake, weight_normed, weight_normed_conv
from fish_s2pro.codec.quantizer import Dequantizer
from fish_s2pro.codec.transformer import WindowedTransformer
from omni.codecs import Step, UpsampleConv, WeightSource, decode_whole


class Upsample:
    """Transposed convolution of kernel and stride ``factor``, then a ConvNeXt block."""

    def __init__(self, weights: WeightSource, prefix: str, channels: int, factor: int, *, columns: int) -> None:
        """``columns``: input columns per frame."""
        self.conv = UpsampleConv(
            weights.take(f"{prefix}.0.conv.weight", channels, channels, factor),
            weights.take(f"{prefix}.0.conv.bias", channels),
            factor,
            columns=columns,
        )
        self.block = ConvNeXt(weights, f"{prefix}.1", channels, columns=columns * factor)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        return self.block(self.conv(x, step), step)


class DecoderBlock:
    """Snake, transposed convolution that halves the channels, residual units of dilation 1, 3, 9."""

    def __init__(self, weights: WeightSource, prefix: str, channels: int, stride: int, *, columns: int) -> None:
        """``columns``: input columns per frame."""
        half = channels // 2
        self.snake = Snake(weights, f"{prefix}.0", channels)
        weight = weight_normed(weights, f"{prefix}.1", channels, half, 2 * stride)
        bias = weights.take(f"{prefix}.1.conv.bias", half)
        self.up = UpsampleConv(weight, bias, stride, columns=columns)
        self.residuals = [
            ResidualUnit(weights, f"{prefix}.{i}", half, dilation, columns=columns * stride)
            for i, dilation in ((2, 1), (3, 3), (4, 9))
        ]

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        joined, new = self.up.conv.room(x.shape[-1], step)
        self.snake(x, out=new)
        x = self.up.run(joined, step)
        for residual in self.residuals:
            x = residual(x, step)
        return x


class CodecDecoder:
    def __init__(
        self, weights: WeightSource, config: CodecConfig, device: torch.device, dtype: torch.dtype = torch.float32
    ) -> None:
        self.config = config
        self.device = device
        self.dtype = dtype
        quantizer = config.quantizer
        self.dequantizer = Dequantizer(weights, quantizer)
        self.post = WindowedTransformer.for_quantizer(weights, "quantizer.post_module", quantizer.transformer, device)
        columns = 1
        self.upsamples = []
        # Upsampling undoes the downsampling: its factors come in the opposite order.
        for i, factor in enumerate(reversed(quantizer.downsample_factor)):
            prefix = f"quantizer.upsample.{i}"
            self.upsamples.append(Upsample(weights, prefix, quantizer.input_dim, factor, columns=columns))
            columns *= factor
        channels = config.decoder_dim
        self.stem = weight_normed_conv(weights, "decoder.model.0", quantizer.input_dim, channels, 7, columns=columns)
        self.blocks = []
        for i, stride in enumerate(config.decoder_rates, start=1):
            prefix = f"decoder.model.{i}.block"
            self.blocks.append(DecoderBlock(weights, prefix, channels, stride, columns=columns))
            channels //= 2
            columns *= stride
        last = len(self.blocks) + 1
        self.snake = Snake(weights, f"decoder.model.{last}", channels)
        self.head = weight_normed_conv(weights, f"decoder.model.{last + 1}", channels, 1, 7, columns=columns)

    def latents(self, codes: Tensor, step: Step) -> Tensor:
        """int64 ``(batch, codebooks, frames)`` to ``(batch, dim, frames)``."""
        return self.post(self.dequantizer(codes), step)

    def waveform(self, latents: Tensor, step: Step) -> Tensor:
        """``(batch, dim, frames)`` to ``(batch, frames * frame_samples)``."""
        x = latents
        for upsample in self.upsamples:
            x = upsample(x, step)
        x = self.stem(x, step)
        for block in self.blocks:
            x = block(x, step)
        joined, new = self.head.room(x.shape[-1], step)
        self.snake(x, out=new)
        return self.head.run(joined, step).tanh_()[:, 0]

    @torch.inference_mode()
    def advance(self, codes: Tensor, step: Step) -> Tensor:
        """Decode the next frames of the step's streams: int64 ``(batch, codebooks, frames)`` to float32
        ``(batch, frames * frame_samples)``."""
        return self.waveform(self.latents(codes, step), step).float()

    def decode(self, codes: Tensor) -> Tensor:
        """Whole streams at once; see :func:`omni.codecs.decode_whole`."""
        return decode_whole(self, codes)

    def reserve(self, frames: int) -> None:
        """Prepare for streams of so many frames."""
        self.post.reserve(frames)
