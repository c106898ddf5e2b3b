"""Waveform to codes."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fish_s2pro.codec.config import ENCODER_WINDOW, FFN_RATIO, CodecConfig
from fish_s2pro.codec.layers import ConvNeXt, ResidualUnit, Snake, weight_normed_conv
from fish_s2pro.codec.quantizer import Quantizer
from fish_s2pro.codec.transformer import WindowedTransformer, rotations
from omni.codecs import CausalConv, Step, StreamState, WeightSource

_CHUNK = 16
"""Frames encoded at a time: memory stays the same for a reference of any length."""


class EncoderBlock:
    """Residual units of dilation 1, 3, 9, then a strided convolution that doubles the channels; in the last block
    of the published model a windowed transformer follows."""

    def __init__(
        self,
        weights: WeightSource,
        prefix: str,
        channels: int,
        stride: int,
        transformer: WindowedTransformer | None,
        *,
        columns: int,
    ) -> None:
        """``columns``: output columns per frame."""
        self.residuals = [
            ResidualUnit(weights, f"{prefix}.{i}", channels, dilation, columns=columns * stride)
            for i, dilation in enumerate((1, 3, 9))
        ]
        self.snake = Snake(weights, f"{prefix}.3", channels)
        self.down = weight_normed_conv(
            weights, f"{prefix}.4", channels, 2 * channels, 2 * stride, columns=columns, stride=stride
        )
        self.transformer = transformer

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        for residual in self.residuals:
            x = residual(x, step)
        joined, new = self.down.room(x.shape[-1], step)
        self.snake(x, out=new)
        x = self.down.run(joined, step)
        return x if self.transformer is None else self.transformer(x, step)


class Downsample:
    """Convolution of kernel and stride ``factor``, then a ConvNeXt block."""

    def __init__(self, weights: WeightSource, prefix: str, channels: int, factor: int, *, columns: int) -> None:
        """``columns``: output columns per frame."""
        self.conv = CausalConv(
            weights.take(f"{prefix}.0.conv.weight", channels, channels, factor),
            weights.take(f"{prefix}.0.conv.bias", channels),
            columns=columns,
            stride=factor,
        )
        self.block = ConvNeXt(weights, f"{prefix}.1", channels, columns=columns)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        return self.block(self.conv(x, step), step)


class CodecEncoder:
    """Float32 only: with less precision several percent of the codes change."""

    def __init__(self, weights: WeightSource, config: CodecConfig, device: torch.device) -> None:
        self.config = config
        self.device = device
        quantizer = config.quantizer
        channels = config.encoder_dim
        self.stem = weight_normed_conv(weights, "encoder.block.0", 1, channels, 7, columns=config.frame_samples)
        self.blocks = []
        columns = config.frame_samples
        for i, (stride, layers) in enumerate(
            zip(config.encoder_rates, config.encoder_transformer_layers, strict=True), start=1
        ):
            columns //= stride
            prefix = f"encoder.block.{i}.block"
            transformer = None
            if layers:
                general = config.transformer_general_config
                transformer = WindowedTransformer(
                    weights,
                    f"{prefix}.5",
                    layers=layers,
                    dim=2 * channels,
                    hidden=2 * channels * FFN_RATIO,
                    head_dim=general.head_dim,
                    window=ENCODER_WINDOW,
                    rate=columns,
                    rope=rotations(general.head_dim, general.rope_base, device),
                    eps=general.norm_eps,
                )
            self.blocks.append(EncoderBlock(weights, prefix, channels, stride, transformer, columns=columns))
            channels *= 2
        last = len(self.blocks) + 1
        self.snake = Snake(weights, f"encoder.block.{last}", channels)
        self.head = weight_normed_conv(weights, f"encoder.block.{last + 1}", channels, channels, 3, columns=columns)
        self.downsamples = []
        for i, factor in enumerate(quantizer.downsample_factor):
            columns //= factor
            prefix = f"quantizer.downsample.{i}"
            self.downsamples.append(Downsample(weights, prefix, channels, factor, columns=columns))
        self.pre = WindowedTransformer.for_quantizer(weights, "quantizer.pre_module", quantizer.transformer, device)
        self.quantizer = Quantizer(weights, quantizer)

    def latents(self, wave: Tensor, step: Step) -> Tensor:
        """``(batch, 1, frames * frame_samples)`` to what the quantiser takes, ``(batch, dim, frames)``."""
        x = self.stem(wave, step)
        for block in self.blocks:
            x = block(x, step)
        x = self.head(self.snake(x), step)
        for downsample in self.downsamples:
            x = downsample(x, step)
        return self.pre(x, step)

    @torch.inference_mode()
    def encode(self, wave: Tensor) -> Tensor:
        """Mono float32 ``(samples,)`` in [-1, 1] at the codec's rate to int64 codes ``(codebooks, frames)`` with
        ``frames = ceil(samples / frame_samples)``; the last frame is filled up with silence."""
        size = self.config.frame_samples
        frames = -(-wave.shape[0] // size)
        padded = F.pad(wave, (0, frames * size - wave.shape[0]))[None, None]
        self.reserve(frames)
        state = StreamState(1, min(frames, _CHUNK), self.device, torch.float32)
        codes = []
        for first in range(0, frames, _CHUNK):
            piece = padded[..., first * size : (first + _CHUNK) * size].to(self.device)
            codes.append(self.quantizer(self.latents(piece, Step(state, [0], [first]))))
        return torch.cat(codes, dim=2)[0]

    def reserve(self, frames: int) -> None:
        """Prepare for streams of so many frames."""
        for transformer in (self.pre, *[block.transformer for block in self.blocks]):
            if transformer is not None:
                transformer.reserve(frames)
