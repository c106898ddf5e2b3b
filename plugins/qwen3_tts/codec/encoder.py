"""Waveform to codes: the first half of a Mimi codec and its quantiser. Everything looks back only."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from omni.codecs import CausalConv, Linear, Step, StreamState, WeightSource, WindowView
from qwen3_tts.codec.blocks import Attention, Positions, causal_conv, scaled_rows
from qwen3_tts.codec.config import CodecConfig, EncoderConfig
from qwen3_tts.codec.decoder import codebook

_CHUNK = 16
"""Frames encoded at a time: memory stays the same for a reference of any length."""

_RATE = 2
"""Positions of the transformer per frame."""


class ResidualBlock:
    """ELU, convolution to fewer channels, ELU, pointwise convolution back; plus the input."""

    def __init__(self, weights: WeightSource, prefix: str, channels: int, config: EncoderConfig, columns: int) -> None:
        hidden, kernel = channels // config.compress, config.residual_kernel_size
        self.conv1 = causal_conv(weights, f"{prefix}.block.1.conv", channels, hidden, kernel, columns=columns)
        self.conv2 = causal_conv(weights, f"{prefix}.block.3.conv", hidden, channels, 1, columns=columns)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        return self.conv2(F.elu(self.conv1(F.elu(x), step)), step).add_(x)


class _Layer:
    """Pre-norm attention and a GELU layer."""

    def __init__(self, weights: WeightSource, prefix: str, config: EncoderConfig) -> None:
        dim, hidden = config.hidden_size, config.intermediate_size
        self.eps = config.norm_eps

        def norm(name: str) -> tuple[Tensor, Tensor]:
            return weights.take(f"{prefix}.{name}.weight", dim), weights.take(f"{prefix}.{name}.bias", dim)

        self.norm1, self.norm2 = norm("input_layernorm"), norm("post_attention_layernorm")
        self.attention = Attention(weights, prefix, dim, config.attention_width, config.head_dim)
        self.up = Linear(weights.take(f"{prefix}.mlp.fc1.weight", hidden, dim))
        self.down = scaled_rows(weights, f"{prefix}.mlp.fc2", f"{prefix}.mlp_layer_scale", dim, hidden)

    def __call__(self, x: Tensor, view: WindowView) -> Tensor:
        width = x.shape[1:]
        x = self.attention(F.layer_norm(x, width, *self.norm1, self.eps), view).add_(x)
        return self.down(F.gelu(self.up(F.layer_norm(x, width, *self.norm2, self.eps)))).add_(x)


class Quantizer:
    """The nearest entries: one semantic codebook, and residual ones, both of the same latent."""

    def __init__(self, weights: WeightSource, config: EncoderConfig, count: int) -> None:
        dim = config.codebook_dim
        self.branches = []
        for branch, books in (("semantic", 1), ("acoustic", count - 1)):
            prefix = f"encoder.quantizer.{branch}_residual_vector_quantizer"
            inward = weights.raw(f"{prefix}.input_proj.weight", dim, config.hidden_size, 1)[..., 0]
            tables = [
                codebook(weights, f"{prefix}.layers.{i}.codebook", "embed_sum", config.codebook_size, dim).double()
                for i in range(books)
            ]
            self.branches.append((inward, tables))

    def __call__(self, latents: Tensor) -> Tensor:
        """``(frames, dim)`` to int64 codes ``(codebooks, frames)``.

        Distances are float64: as products they would lose what tells close entries apart.
        """
        codes = []
        for inward, tables in self.branches:
            rest = F.linear(latents, inward).double()
            for table in tables:
                codes.append((table.square().sum(1) / 2 - rest @ table.t()).argmin(1))
                rest = rest - table[codes[-1]]
        return torch.stack(codes)


class CodecEncoder:
    """Float32 only: with less precision several percent of the codes change.

    ``windowed``: positions see ``sliding_window`` of those before them; otherwise all, as in the reference.
    """

    def __init__(self, weights: WeightSource, config: CodecConfig, device: torch.device, *, windowed: bool) -> None:
        self.config = config
        self.device = device
        e = config.encoder
        columns, channels, stack = config.frame_samples, e.num_filters, "encoder.encoder.layers"
        self.stem = causal_conv(weights, f"{stack}.0.conv", 1, channels, e.kernel_size, columns=columns)
        self.stages: list[tuple[ResidualBlock, CausalConv]] = []
        place = 1
        for stride in reversed(e.upsampling_ratios):
            block = ResidualBlock(weights, f"{stack}.{place}", channels, e, columns)
            columns //= stride
            name = f"{stack}.{place + 2}.conv"
            down = causal_conv(weights, name, channels, 2 * channels, 2 * stride, columns=columns, stride=stride)
            self.stages.append((block, down))
            channels *= 2
            place += 3
        name = f"{stack}.{place + 1}.conv"
        self.head = causal_conv(weights, name, channels, e.hidden_size, e.last_kernel_size, columns=columns)
        self.windowed = windowed
        self.positions = Positions(e.head_dim, e.rope_theta, window=e.sliding_window, rate=_RATE, device=device)
        prefix = "encoder.encoder_transformer.layers"
        self.layers = [_Layer(weights, f"{prefix}.{i}", e) for i in range(e.num_hidden_layers)]
        kernel = weights.take("encoder.downsample.conv.weight", e.hidden_size, e.hidden_size, 2 * _RATE)
        self.down = CausalConv(kernel, None, columns=1, stride=_RATE)
        self.quantizer = Quantizer(weights, e, config.codebooks)

    def convolved(self, wave: Tensor, step: Step) -> Tensor:
        """``(1, 1, samples)`` to ``(1, dim, positions)``. Only the last piece of a signal may have a length that does
        not fill its last position: every layer fills up its own input with zeros then."""
        x = self.stem(wave, step)
        for block, down in self.stages:
            x = F.elu(block(x, step))
            x = down(F.pad(x, (0, -x.shape[-1] % down.stride)), step)
        return self.head(F.elu(x), step)

    def transformed(self, x: Tensor, step: Step, window: int) -> Tensor:
        """``(1, dim, positions)`` to the same."""
        view = self.positions.view(step, x.shape[-1], window)
        rows = x[0].t()
        for layer in self.layers:
            rows = layer(rows, view)
        return rows.t()[None]

    def latents(self, x: Tensor, step: Step, *, first: bool) -> Tensor:
        """``(1, dim, positions)`` to ``(1, dim, frames)``; ``first``: this is the start of a signal, before which the
        first position stands again and again, as the last does after the end."""
        x = F.pad(x, (0, -x.shape[-1] % _RATE), mode="replicate")
        joined, new = self.down.room(x.shape[-1], step)
        new.copy_(x)
        if first:
            joined[..., : self.down.pad] = x[..., :1]
        return self.down.run(joined, step)

    @torch.inference_mode()
    def encode(self, wave: Tensor) -> Tensor:
        """Mono float32 ``(samples,)`` in [-1, 1] at the codec's rate, not empty, to int64 codes ``(codebooks, frames)``
        with ``frames = ceil(samples / frame_samples)``."""
        size = self.config.frame_samples
        frames = -(-wave.shape[0] // size)
        self.positions.reserve(frames)
        window = self.config.encoder.sliding_window if self.windowed else frames * _RATE
        state = StreamState(1, min(frames, _CHUNK), self.device, torch.float32)
        pieces = []
        for first in range(0, frames, _CHUNK):
            piece = wave[None, None, first * size : (first + _CHUNK) * size].to(self.device)
            step = Step(state, [0], [first])
            x = self.transformed(self.convolved(piece, step), step, window)
            pieces.append(self.latents(x, step, first=first == 0))
        return self.quantizer(torch.cat(pieces, dim=2)[0].t())
