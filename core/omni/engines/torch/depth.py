"""The depth transformer: a small decoder run over the codebooks of one frame, fresh for every frame."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from omni.engines.torch.layers import DecoderLayer, Heads, Rope


class _FrameCache:
    """Keys and values ``(layers, B, kv_heads, positions, head_dim)`` of the frame in the making."""

    def __init__(self, layers: Sequence[DecoderLayer], rows: int, positions: int, like: Tensor) -> None:
        d = layers[0].dims
        shape = (len(layers), rows, d.kv_heads, positions, d.head_dim)
        self._keys = torch.empty(shape, device=like.device, dtype=like.dtype).unbind(0)
        self._values = torch.empty(shape, device=like.device, dtype=like.dtype).unbind(0)
        self._rows = rows

    def attend(self, layer: int, start: int, stop: int) -> Heads:
        """For a pass over positions ``start`` to ``stop`` of every row, the rows' positions lying side by side."""
        keys, values, rows, n = self._keys[layer], self._values[layer], self._rows, stop - start

        def heads(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            count, dim = q.shape[1:]
            groups = k.shape[1]
            keys[:, :, start:stop] = k.view(rows, n, groups, dim).transpose(1, 2)
            values[:, :, start:stop] = v.view(rows, n, groups, dim).transpose(1, 2)
            if n == 1:
                query = q.view(rows, groups, count // groups, dim)
                mixed = F.scaled_dot_product_attention(query, keys[:, :, :stop], values[:, :, :stop])
                return mixed.reshape(rows, count * dim)
            if start:
                raise ValueError("several positions at once only at the start of a frame")
            share = count // groups
            query = q.view(rows, n, count, dim).transpose(1, 2)
            key = keys[:, :, :stop].repeat_interleave(share, 1)
            value = values[:, :, :stop].repeat_interleave(share, 1)
            mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
            return mixed.transpose(1, 2).reshape(rows * n, count * dim)

        return heads


class DepthTransformer(nn.Module):
    """Layers and final norm over positions 0 .. C - 1; embeddings and heads are the caller's."""

    def __init__(self, layers: Sequence[DecoderLayer], norm: nn.Parameter, rope: Rope) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.norm = norm
        self._stack = list(layers)
        self._rope = rope

    def _run(self, x: Tensor, start: int, stop: int, cache: _FrameCache) -> Tensor:
        """``x`` ``(B * n, dim)`` at positions ``start .. stop - 1`` to normed hidden states of the same shape."""
        rows = x.shape[0] // (stop - start)
        factors = self._rope.table[start:stop].unsqueeze(1)
        if stop - start > 1:
            factors = factors.repeat(rows, 1, 1)
        for index, layer in enumerate(self._stack):
            x = layer(x, self._rope, factors, cache.attend(index, start, stop))
        return self._stack[0].norm(x, self.norm)

    def forward(self, x: Tensor) -> Tensor:
        """Teacher-forced: inputs ``(B, n, dim)`` of positions 0 .. n - 1 to normed hidden states."""
        rows, n, dim = x.shape
        cache = _FrameCache(self._stack, rows, n, x)
        return self._run(x.reshape(rows * n, dim), 0, n, cache).view(rows, n, dim)

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
        rows, dim = condition.shape
        cache = _FrameCache(self._stack, rows, length, condition)
        x = torch.stack((condition, embed(0, first)), 1).view(rows * 2, dim)
        hidden = self._run(x, 0, 2, cache).view(rows, 2, dim)[:, 1]
        codes.append(pick(1, hidden))
        for position in range(2, length):
            hidden = self._run(embed(position - 1, codes[-1]), position, position + 1, cache)
            codes.append(pick(position, hidden))
        return torch.stack(codes, 1)
