"""Codes to waveform: quantiser, windowed transformer, upsampling, convolutions. Everything looks back only."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from omni.codecs import CausalConv, Linear, Step, UpsampleConv, WeightSource, WindowView
from qwen3_tts.codec.blocks import Attention, Positions, causal_conv, scaled_rows
from qwen3_tts.codec.config import CodecConfig, DecoderConfig

_KERNEL = 7
_DILATIONS = (1, 3, 9)
_RARE = 1e-5
"""Least usage that a codebook entry is divided by."""


def codebook(weights: WeightSource, prefix: str, total: str, size: int, dim: int) -> Tensor:
    """Entries ``(size, dim)``: running sums ``total`` over how often each was used, float32."""
    usage = weights.raw(f"{prefix}.cluster_usage", size).clamp_(min=_RARE)
    return weights.raw(f"{prefix}.{total}", size, dim).div_(usage[:, None])


class Dequantizer:
    """The sum of all codebooks' entries, projected, as one gather: each branch's projection is applied to its tables
    when they are loaded, since it has no bias."""

    def __init__(self, weights: WeightSource, config: DecoderConfig) -> None:
        size, width, dim = config.codebook_size, config.codebook_dim, config.codebook_dim // 2
        tables = []
        for branch, count in (("rvq_first", 1), ("rvq_rest", config.num_quantizers - 1)):
            prefix = f"decoder.quantizer.{branch}"
            outward = weights.raw(f"{prefix}.output_proj.weight", width, dim, 1)[..., 0]
            for i in range(count):
                table = codebook(weights, f"{prefix}.vq.layers.{i}._codebook", "embedding_sum", size, dim)
                tables.append(F.linear(table, outward))
        self.table = torch.cat(tables).to(weights.dtype)
        self.last = size - 1
        self.offsets = (torch.arange(config.num_quantizers, device=self.table.device) * size)[:, None]

    def __call__(self, codes: Tensor) -> Tensor:
        """int64 ``(batch, codebooks, frames)`` to ``(batch, width, frames)``."""
        rows = codes.clamp(0, self.last) + self.offsets
        return F.embedding(rows.transpose(1, 2), self.table).sum(2).transpose(1, 2)


class _Layer:
    """Pre-norm attention and SwiGLU."""

    def __init__(self, weights: WeightSource, prefix: str, config: DecoderConfig) -> None:
        dim, hidden = config.hidden_size, config.intermediate_size
        self.eps = config.rms_norm_eps
        self.norm1 = weights.take(f"{prefix}.input_layernorm.weight", dim)
        self.attention = Attention(weights, prefix, dim, config.attention_width, config.head_dim)
        self.norm2 = weights.take(f"{prefix}.post_attention_layernorm.weight", dim)
        gate_up = [weights.take(f"{prefix}.mlp.{name}_proj.weight", hidden, dim) for name in ("gate", "up")]
        self.gate_up = Linear(torch.cat(gate_up))
        self.down = scaled_rows(weights, f"{prefix}.mlp.down_proj", f"{prefix}.mlp_layer_scale", dim, hidden)

    def __call__(self, x: Tensor, view: WindowView) -> Tensor:
        width = x.shape[1:]
        x = self.attention(F.rms_norm(x, width, self.norm1, self.eps), view).add_(x)
        gate, up = self.gate_up(F.rms_norm(x, width, self.norm2, self.eps)).chunk(2, dim=1)
        return self.down(F.silu(gate).mul_(up)).add_(x)


class Transformer:
    """Between two projections; a position is a frame."""

    def __init__(self, weights: WeightSource, config: DecoderConfig, device: torch.device) -> None:
        prefix, dim, outer = "decoder.pre_transformer", config.hidden_size, config.latent_dim
        self.positions = Positions(
            config.head_dim, config.rope_theta, window=config.sliding_window, rate=1, device=device
        )
        self.eps = config.rms_norm_eps
        self.inward = Linear(
            weights.take(f"{prefix}.input_proj.weight", dim, outer), weights.take(f"{prefix}.input_proj.bias", dim)
        )
        self.layers = [_Layer(weights, f"{prefix}.layers.{i}", config) for i in range(config.num_hidden_layers)]
        self.norm = weights.take(f"{prefix}.norm.weight", dim)
        self.outward = Linear(
            weights.take(f"{prefix}.output_proj.weight", outer, dim), weights.take(f"{prefix}.output_proj.bias", outer)
        )

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        """``(batch, latent, frames)`` to the same."""
        batch, _, frames = x.shape
        view = self.positions.view(step, frames)
        rows = self.inward(x.transpose(1, 2).reshape(batch * frames, -1))
        for layer in self.layers:
            rows = layer(rows, view)
        rows = self.outward(F.rms_norm(rows, rows.shape[1:], self.norm, self.eps))
        return rows.view(batch, frames, -1).transpose(1, 2)


class Upsample:
    """Transposed convolution of kernel and stride ``factor``, then a ConvNeXt block whose ``gamma`` is folded in."""

    def __init__(self, weights: WeightSource, prefix: str, channels: int, factor: int, *, columns: int) -> None:
        """``columns``: input columns per frame."""
        self.up = UpsampleConv(
            weights.take(f"{prefix}.0.conv.weight", channels, channels, factor),
            weights.take(f"{prefix}.0.conv.bias", channels),
            factor,
            columns=columns,
        )
        block, hidden = f"{prefix}.1", 4 * channels
        self.depthwise = causal_conv(
            weights, f"{block}.dwconv.conv", channels, channels, _KERNEL, columns=columns * factor, groups=channels
        )
        self.norm = weights.take(f"{block}.norm.weight", channels), weights.take(f"{block}.norm.bias", channels)
        self.expand = Linear(
            weights.take(f"{block}.pwconv1.weight", hidden, channels), weights.take(f"{block}.pwconv1.bias", hidden)
        )
        gamma = weights.raw(f"{block}.gamma", channels)
        self.reduce = Linear(
            weights.raw(f"{block}.pwconv2.weight", channels, hidden).mul_(gamma[:, None]).to(weights.dtype),
            weights.raw(f"{block}.pwconv2.bias", channels).mul_(gamma).to(weights.dtype),
        )

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        x = self.up(x, step)
        y = F.layer_norm(self.depthwise(x, step).transpose(1, 2), x.shape[1:2], *self.norm, 1e-6)
        return self.reduce(F.gelu(self.expand(y))).transpose(1, 2) + x


class SnakeBeta:
    """``x + sin(a x)^2 / (b + 1e-9)`` with one ``a`` and one ``b`` per channel, kept as their logarithms."""

    def __init__(self, weights: WeightSource, prefix: str, channels: int) -> None:
        self.alpha = weights.raw(f"{prefix}.alpha", channels).exp()[:, None].to(weights.dtype)
        self.scale = (1.0 / (weights.raw(f"{prefix}.beta", channels).exp() + 1e-9))[:, None].to(weights.dtype)

    def __call__(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """``out`` may be ``x`` itself."""
        ripple = (x * self.alpha).sin_().square_()
        return torch.addcmul(x, ripple, self.scale, out=out)


class ResidualUnit:
    """SnakeBeta, dilated convolution, SnakeBeta, pointwise convolution; plus the input."""

    def __init__(self, weights: WeightSource, prefix: str, channels: int, dilation: int, *, columns: int) -> None:
        self.snake1 = SnakeBeta(weights, f"{prefix}.act1", channels)
        self.conv1 = causal_conv(
            weights, f"{prefix}.conv1.conv", channels, channels, _KERNEL, columns=columns, dilation=dilation
        )
        self.snake2 = SnakeBeta(weights, f"{prefix}.act2", channels)
        self.conv2 = causal_conv(weights, f"{prefix}.conv2.conv", channels, channels, 1, columns=columns)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        joined, new = self.conv1.room(x.shape[-1], step)
        self.snake1(x, out=new)
        y = self.conv1.run(joined, step)
        return self.conv2(self.snake2(y, out=y), step).add_(x)


class DecoderBlock:
    """SnakeBeta, transposed convolution that halves the channels, residual units."""

    def __init__(self, weights: WeightSource, prefix: str, channels: int, stride: int, *, columns: int) -> None:
        """``columns``: input columns per frame."""
        half = channels // 2
        self.snake = SnakeBeta(weights, f"{prefix}.0", channels)
        weight = weights.take(f"{prefix}.1.conv.weight", channels, half, 2 * stride)
        bias = weights.take(f"{prefix}.1.conv.bias", half)
        self.up = UpsampleConv(weight, bias, stride, columns=columns)
        self.residuals = [
            ResidualUnit(weights, f"{prefix}.{i}", half, dilation, columns=columns * stride)
            for i, dilation in enumerate(_DILATIONS, start=2)
        ]

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        joined, new = self.up.conv.room(x.shape[-1], step)
        self.snake(x, out=new)
        x = self.up.run(joined, step)
        for residual in self.residuals:
            x = residual(x, step)
        return x


class CodecDecoder:
    """See :class:`omni.codecs.FrameDecoder`."""

    def __init__(self, weights: WeightSource, config: CodecConfig, device: torch.device, dtype: torch.dtype) -> None:
        self.config = config
        self.device, self.dtype = device, dtype
        d = config.decoder
        self.dequantizer = Dequantizer(weights, d)
        self.pre = causal_conv(weights, "decoder.pre_conv.conv", d.codebook_dim, d.latent_dim, 3, columns=1)
        self.transformer = Transformer(weights, d, device)
        columns, self.upsamples = 1, []
        for i, factor in enumerate(d.upsampling_ratios):
            self.upsamples.append(Upsample(weights, f"decoder.upsample.{i}", d.latent_dim, factor, columns=columns))
            columns *= factor
        channels, stack = d.decoder_dim, "decoder.decoder"
        self.stem = causal_conv(weights, f"{stack}.0.conv", d.latent_dim, channels, _KERNEL, columns=columns)
        self.blocks = []
        for i, stride in enumerate(d.upsample_rates, start=1):
            self.blocks.append(DecoderBlock(weights, f"{stack}.{i}.block", channels, stride, columns=columns))
            channels //= 2
            columns *= stride
        last = len(self.blocks) + 1
        self.snake = SnakeBeta(weights, f"{stack}.{last}", channels)
        self.head: CausalConv = causal_conv(weights, f"{stack}.{last + 1}.conv", channels, 1, _KERNEL, columns=columns)
        self.reach = frames_behind(d)

    def latents(self, codes: Tensor, step: Step) -> Tensor:
        """int64 ``(batch, codebooks, frames)`` to ``(batch, latent, frames)``."""
        return self.transformer(self.pre(self.dequantizer(codes), step), step)

    def upsampled(self, latents: Tensor, step: Step) -> Tensor:
        """``(batch, latent, frames)`` to four times as many columns."""
        for upsample in self.upsamples:
            latents = upsample(latents, step)
        return latents

    def waveform(self, latents: Tensor, step: Step) -> Tensor:
        """``(batch, latent, frames)`` to ``(batch, frames * frame_samples)``."""
        x = self.stem(self.upsampled(latents, step), step)
        for block in self.blocks:
            x = block(x, step)
        joined, new = self.head.room(x.shape[-1], step)
        self.snake(x, out=new)
        return self.head.run(joined, step)[:, 0].clamp_(-1, 1)

    def advance(self, codes: Tensor, step: Step) -> Tensor:
        return self.waveform(self.latents(codes, step), step).float()

    def skip(self, codes: Tensor, step: Step, following: int) -> None:
        latents = self.latents(codes, step)
        # The transformer remembers long, the convolutions after it do not.
        if following < self.reach:
            self.waveform(latents, step)

    def reserve(self, frames: int) -> None:
        self.transformer.positions.reserve(frames)


def frames_behind(config: DecoderConfig) -> int:
    """Frames before the current one that the layers behind the transformer look back at."""
    behind, columns = 0.0, 1
    for factor in config.upsampling_ratios:
        columns *= factor
        behind += (_KERNEL - 1) / columns
    behind += (_KERNEL - 1) / columns
    for stride in config.upsample_rates:
        behind += 1 / columns
        columns *= stride
        behind += (_KERNEL - 1) * sum(_DILATIONS) / columns
    behind += (_KERNEL - 1) / columns
    return int(behind) + 1
