"""The depth transformer: a small decoder run over the codebooks of one frame, fresh for every frame."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from omni.engines.torch.layers import DecoderLayer, Heads, Rope


class _LayerCache:
    """Keys and values ``(B, kv_heads, positions, head_dim)`` of one layer for the frame in the making.

    Written and read through views that are made once: a frame takes a hundred passes over layers as small as these, and
    a view costs as much as a product of few numbers.
    """

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        self._keys, self._values = keys, values
        places = range(keys.shape[2])
        self._targets = [(keys[:, :, place], values[:, :, place]) for place in places]
        self._known = [(keys[:, :, : place + 1], values[:, :, : place + 1]) for place in places]
        self._rows, self._groups, _, self._dim = keys.shape

    def one(self, place: int) -> Heads:
        """For a pass over one position of every row."""
        key_target, value_target = self._targets[place]
        keys, values = self._known[place]

        def heads(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            key_target.copy_(k)
            value_target.copy_(v)
            query = q.view(self._rows, self._groups, -1, self._dim)
            return F.scaled_dot_product_attention(query, keys, values).view(self._rows, -1)

        return heads

    def first(self, count: int) -> Heads:
        """For a pass over positions 0 .. count - 1 of every row, the rows' positions lying side by side."""
        keys, values = self._known[count - 1]

        def heads(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            rows, groups, dim = self._rows, self._groups, self._dim
            keys.copy_(k.view(rows, count, groups, dim).transpose(1, 2))
            values.copy_(v.view(rows, count, groups, dim).transpose(1, 2))
            total = q.shape[1]
            query = q.view(rows, count, total, dim).transpose(1, 2)
            key, value = (t.repeat_interleave(total // groups, 1) for t in (keys, values))
            mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
            return mixed.transpose(1, 2).reshape(rows * count, total * dim)

        return heads


class DepthTransformer(nn.Module):
    """Layers and final norm over positions 0 .. C - 1; embeddings and heads are the caller's."""

    def __init__(self, layers: Sequence[DecoderLayer], norm: nn.Parameter, rope: Rope) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.norm = norm
        self._stack = list(layers)
        self._rope = rope
        # Each engine's thread has its own; a captured CUDA graph refers to their addresses, so they are never dropped.
        self._caches = threading.local()

    def _cache(self, rows: int, positions: int) -> list[_LayerCache]:
        found: dict[tuple[int, int], list[_LayerCache]] = self._caches.__dict__.setdefault("views", {})
        cache = found.get((rows, positions))
        if cache is None:
            keys, values = self._buffer(1 << (rows - 1).bit_length(), positions)
            cache = found[rows, positions] = [
                _LayerCache(k, v) for k, v in zip(keys[:, :rows], values[:, :rows], strict=True)
            ]
        return cache

    def _buffer(self, rows: int, positions: int) -> Tensor:
        """Keys and values ``(2, layers, rows, kv_heads, positions, head_dim)``, shared by all batches of up to so many
        rows that have no smaller one."""
        found: dict[tuple[int, int], Tensor] = self._caches.__dict__.setdefault("buffers", {})
        buffer = found.get((rows, positions))
        if buffer is None:
            d = self._stack[0].dims
            shape = (2, len(self._stack), rows, d.kv_heads, positions, d.head_dim)
            with torch.inference_mode(False):
                buffer = found[rows, positions] = torch.zeros(shape, device=self.norm.device, dtype=self.norm.dtype)
        return buffer

    def _run(self, x: Tensor, place: int, cache: list[_LayerCache]) -> Tensor:
        """``x`` ``(B, dim)`` at position ``place`` to normed hidden states of the same shape."""
        factors = self._rope.table[place : place + 1].unsqueeze(1)
        for layer, known in zip(self._stack, cache, strict=True):
            x = layer(x, self._rope, factors, known.one(place))
        return self._stack[0].norm(x, self.norm)

    def _run_first(self, x: Tensor, cache: list[_LayerCache]) -> Tensor:
        """``x`` ``(B, n, dim)`` at positions 0 .. n - 1 to normed hidden states of the same shape."""
        rows, count, dim = x.shape
        x = x.reshape(rows * count, dim)
        factors = self._rope.table[:count].unsqueeze(1).repeat(rows, 1, 1)
        for layer, known in zip(self._stack, cache, strict=True):
            x = layer(x, self._rope, factors, known.first(count))
        return self._stack[0].norm(x, self.norm).view(rows, count, dim)

    def forward(self, x: Tensor) -> Tensor:
        """Teacher-forced: inputs ``(B, n, dim)`` of positions 0 .. n - 1 to normed hidden states."""
        return self._run_first(x, self._cache(x.shape[0], x.shape[1]))

    def generate(
        self,
        condition: Tensor,
        first: Tensor,
        length: int,
        embed: Callable[[int, Tensor], Tensor],
        pick: Callable[[int, Tensor], Tensor],
    ) -> Tensor:
        """The codes of a frame, int64 ``(B, length)``, the first of which is given.

        Position 0 takes ``condition`` ``(B, dim)``, position i takes ``embed(i - 1, code_{i-1})`` and gives code i
        through ``pick(i, hidden (B, dim))``. Positions 0 and 1 are known from the start and run as one pass, so a
        frame reads the weights ``length - 1`` times.
        """
        codes = [first]
        if length == 1:
            return first.unsqueeze(1)
        cache = self._cache(condition.shape[0], length)
        hidden = self._run_first(torch.stack((condition, embed(0, first)), 1), cache)[:, 1]
        codes.append(pick(1, hidden))
        for place in range(2, length):
            hidden = self._run(embed(place - 1, codes[-1]), place, cache)
            codes.append(pick(place, hidden))
        return torch.stack(codes, 1)
