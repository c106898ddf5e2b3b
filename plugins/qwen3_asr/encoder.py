"""The audio encoder: mel frames to embeddings, 13 positions a second, attention within windows of eight seconds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from omni.engines.torch import linear, weight
from qwen3_asr.config import CHUNK_FRAMES, CHUNK_TOKENS, AudioSection

_EPS = 1e-5
_KERNELS = 3
_CHUNKS_AT_ONCE = {"cpu": 16, "cuda": 256}
"""Bounds the memory of a pass; the first convolution makes 3 MB (in bfloat16) of a chunk at the published sizes."""


def _halved(length: int) -> int:
    return (length - 1) // 2 + 1


def positions_of(frames: int) -> int:
    """Positions that a clip of so many mel frames becomes."""
    full, rest = divmod(frames, CHUNK_FRAMES)
    return full * CHUNK_TOKENS + (_halved(_halved(_halved(rest))) if rest else 0)


class _Window(NamedTuple):
    """Frames ``start`` to ``stop`` of clip ``clip``: what attends to itself and to nothing else."""

    clip: int
    start: int
    stop: int

    @property
    def chunks(self) -> int:
        return -(-(self.stop - self.start) // CHUNK_FRAMES)


class EncoderLayer(nn.Module):
    """Pre-norm layer with biases everywhere; ``wqkv`` stacks the rows of q, k and v."""

    def __init__(self, config: AudioSection, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        d, ffn = config.d_model, config.encoder_ffn_dim

        def make(*shape: int) -> nn.Parameter:
            return weight(*shape, device=device, dtype=dtype)

        self.attention_norm, self.attention_norm_bias = make(d), make(d)
        self.wqkv, self.qkv_bias = make(3 * d, d), make(3 * d)
        self.wo, self.o_bias = make(d, d), make(d)
        self.ffn_norm, self.ffn_norm_bias = make(d), make(d)
        self.w1, self.b1 = make(ffn, d), make(ffn)
        self.w2, self.b2 = make(d, ffn), make(d)
        self._heads = config.encoder_attention_heads

    def forward(self, x: Tensor, rows: Tensor, mask: Tensor) -> Tensor:
        """``x`` ``(N, d)``; position i of the pass is row ``rows[i]`` of the windows laid out as ``(W * L, d)``, of
        which ``mask`` bool ``(W, 1, 1, L)`` says what is there."""
        d = x.shape[1]
        windows, length = mask.shape[0], mask.shape[3]
        y = F.layer_norm(x, (d,), self.attention_norm, self.attention_norm_bias, _EPS)
        laid_out = x.new_zeros(windows * length, 3 * d).index_copy_(0, rows, linear(y, self.wqkv, self.qkv_bias))
        qkv = laid_out.view(windows, length, 3, self._heads, d // self._heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], attn_mask=mask)
        mixed = mixed.transpose(1, 2).reshape(windows * length, d).index_select(0, rows)
        x = x + linear(mixed, self.wo, self.o_bias)
        y = F.layer_norm(x, (d,), self.ffn_norm, self.ffn_norm_bias, _EPS)
        return x + linear(F.gelu(linear(y, self.w1, self.b1)), self.w2, self.b2)


class AudioEncoder(nn.Module):
    """Weights are uninitialised until the loader or :meth:`randomise` fills them.

    The reference's attention over the whole clip, where its own windows are forgotten, is a window that no clip fills.
    """

    def __init__(self, config: AudioSection, *, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        self.config = config
        self.device, self.dtype = device, dtype
        d, channels = config.d_model, config.downsample_hidden_size

        def make(*shape: int) -> nn.Parameter:
            return weight(*shape, device=device, dtype=dtype)

        inputs = (1, channels, channels)
        self.kernels = nn.ParameterList(make(channels, n, _KERNELS, _KERNELS) for n in inputs)
        self.kernel_biases = nn.ParameterList(make(channels) for _ in inputs)
        self.conv_out = make(d, channels * _halved(_halved(_halved(config.num_mel_bins))))
        self.blocks = [EncoderLayer(config, device, dtype) for _ in range(config.encoder_layers)]
        self.layers = nn.ModuleList(self.blocks)
        self.norm, self.norm_bias = make(d), make(d)
        self.proj1, self.proj1_bias = make(d, d), make(d)
        self.proj2, self.proj2_bias = make(config.output_dim, d), make(config.output_dim)
        self._places = self._sinusoids().to(device, dtype)

    def _sinusoids(self) -> Tensor:
        """``(CHUNK_TOKENS, d)``: sines, then cosines. They begin anew in every chunk."""
        half = self.config.d_model // 2
        speeds = torch.exp(torch.arange(half, dtype=torch.float32) * -(math.log(10_000) / max(half - 1, 1)))
        angles = torch.arange(CHUNK_TOKENS, dtype=torch.float32).unsqueeze(1) * speeds
        return torch.cat((angles.sin(), angles.cos()), 1)

    def randomise(self, generator: torch.Generator) -> None:
        """Random weights at which a deep encoder neither dies nor explodes."""
        for name, parameter in self.named_parameters():
            if parameter.dim() == 1:
                parameter.fill_(1.0 if name.endswith("norm") else 0.0)
            else:
                parameter.normal_(0.0, parameter[0].numel() ** -0.5, generator=generator)

    @torch.inference_mode()
    def encode(self, clips: Sequence[np.ndarray]) -> list[Tensor]:
        """Mel frames float32 ``(bands, frames)`` of each clip to ``(positions, output_dim)`` on this device. A clip's
        result does not depend on the others, up to float rounding."""
        found: list[list[Tensor]] = [[] for _ in clips]
        for batch in self._batches(clips):
            pieces, lengths = self._embed(clips, batch)
            for window, part in zip(batch, torch.split(self._attend(pieces, lengths), lengths), strict=True):
                found[window.clip].append(part)
        return [torch.cat(parts) for parts in found]

    @torch.inference_mode()
    def convolve(self, clip: np.ndarray) -> Tensor:
        """What the layers take, ``(positions, d)``: convolutions and places of one clip."""
        parts = [self._embed([clip], batch)[0] for batch in self._batches([clip])]
        return torch.cat(parts)

    def _batches(self, clips: Sequence[np.ndarray]) -> Iterator[list[_Window]]:
        size = self.config.window_chunks * CHUNK_FRAMES
        limit = max(_CHUNKS_AT_ONCE.get(self.device.type, 16), 1)
        batch: list[_Window] = []
        chunks = 0
        for index, clip in enumerate(clips):
            frames = clip.shape[1]
            for start in range(0, frames, size):
                window = _Window(index, start, min(start + size, frames))
                if batch and chunks + window.chunks > limit:
                    yield batch
                    batch, chunks = [], 0
                batch.append(window)
                chunks += window.chunks
        if batch:
            yield batch

    def _embed(self, clips: Sequence[np.ndarray], batch: Sequence[_Window]) -> tuple[Tensor, list[int]]:
        """``(positions, d)`` of all windows in a row, and the positions of each."""
        chunks: dict[int, list[np.ndarray]] = {}
        order: list[tuple[int, int, int]] = []  # of every chunk: its width, its place among those, its positions
        for window in batch:
            clip = clips[window.clip]
            # A clip of less than a second is its only chunk; all others are filled up to a second.
            width = min(clip.shape[1], CHUNK_FRAMES)
            for start in range(window.start, window.stop, CHUNK_FRAMES):
                part = clip[:, start : min(start + CHUNK_FRAMES, window.stop)]
                same = chunks.setdefault(width, [])
                order.append((width, len(same), positions_of(part.shape[1])))
                same.append(np.pad(part, ((0, 0), (0, width - part.shape[1]))))
        made = {width: self._convolutions(np.stack(same)) for width, same in chunks.items()}
        parts = [made[width][place, :count] for width, place, count in order]
        lengths = [positions_of(window.stop - window.start) for window in batch]
        return torch.cat(parts), lengths

    def _convolutions(self, chunks: np.ndarray) -> Tensor:
        """``(n, bands, frames)`` to ``(n, positions, d)``, places added."""
        x = torch.from_numpy(chunks).to(self.device, self.dtype).unsqueeze(1)
        for kernel, bias in zip(self.kernels, self.kernel_biases, strict=True):
            x = F.gelu(F.conv2d(x, kernel, bias, stride=2, padding=1))
        n, channels, bands, length = x.shape
        x = x.permute(0, 3, 1, 2).reshape(n * length, channels * bands)
        return linear(x, self.conv_out).view(n, length, -1) + self._places[:length]

    def _attend(self, x: Tensor, lengths: Sequence[int]) -> Tensor:
        """``(N, d)`` through the layers and the projection; windows of ``lengths`` positions lie in a row."""
        longest = max(lengths)
        counts = torch.tensor(lengths)
        there = torch.arange(longest) < counts.unsqueeze(1)
        rows = there.view(-1).nonzero().squeeze(1).to(self.device)
        mask = there.view(len(lengths), 1, 1, longest).to(self.device)
        for layer in self.blocks:
            x = layer(x, rows, mask)
        x = F.layer_norm(x, (x.shape[1],), self.norm, self.norm_bias, _EPS)
        return linear(F.gelu(linear(x, self.proj1, self.proj1_bias)), self.proj2, self.proj2_bias)
