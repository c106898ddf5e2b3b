"""Paged attention behind one small interface; here on torch's scaled_dot_product_attention, on any device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from omni.engines.torch.fresh import FreshAttention
from omni.engines.torch.model import Attend, KVShape


@dataclass(frozen=True)
class Segment:
    """Positions ``start`` to ``stop`` of one sequence in a prefill; ``pages`` covers positions 0 to ``stop``."""

    start: int
    stop: int
    pages: Sequence[int]


Span = tuple[int, int, int]
"""``(first row, end row, pages)``: rows of a decode batch whose contexts fit in so many pages."""


class PagedAttention(Protocol):
    """Owns the KV pages. A plan is made once per forward pass and called once per layer."""

    def prefill(self, segments: Sequence[Segment]) -> Attend:
        """For a pass over the concatenated positions of ``segments``."""

    def decode(self, tables: Tensor, positions: Tensor, spans: Sequence[Span]) -> Attend:
        """For a pass over one position per row. ``tables`` int64 ``(B, P)``, ``positions`` int64 ``(B,)``; must
        be capturable in a CUDA graph, where only ``spans`` is fixed."""


def _zeros(shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    """On CPU torch would write every zero now, and hold half of the machine's memory for nothing."""
    if device.type != "cpu":
        return torch.zeros(shape, device=device, dtype=dtype)
    return torch.from_numpy(np.zeros(math.prod(shape) * dtype.itemsize, np.uint8)).view(dtype).view(shape)


class SdpaAttention:
    """Gathers the live pages of each sequence and calls SDPA: the cost follows the context, not the capacity.

    Pages are ``(layers, pages + 1, page_size, kv_heads, head_dim)``, zeroed (on CPU lazily by the system), so that
    masked positions never hold NaN.
    """

    def __init__(self, kv: KVShape, pages: int, page_size: int, *, device: torch.device, dtype: torch.dtype) -> None:
        shape = (kv.layers, pages + 1, page_size, kv.kv_heads, kv.head_dim)
        self._kv = kv
        self._page_size = page_size
        self._device, self._dtype = device, dtype
        # A GPU waits for launches, a CPU for the copies that lay sequences out side by side.
        self._batches_fresh = device.type != "cpu"
        self._keys = list(_zeros(shape, device, dtype).unbind(0))
        self._values = list(_zeros(shape, device, dtype).unbind(0))

    def _write(self, layer: int, slots: Tensor, k: Tensor, v: Tensor) -> None:
        heads = (self._kv.kv_heads, self._kv.head_dim)
        self._keys[layer].view(-1, *heads).index_copy_(0, slots, k.to(self._dtype))
        self._values[layer].view(-1, *heads).index_copy_(0, slots, v.to(self._dtype))

    def _gather(self, pages: list[Tensor], layer: int, tables: Tensor) -> Tensor:
        """``tables`` ``(B, P)`` to ``(B, kv_heads, P * page_size, head_dim)``."""
        rows, count = tables.shape
        found = pages[layer].index_select(0, tables.reshape(-1))
        return found.view(rows, count * self._page_size, self._kv.kv_heads, self._kv.head_dim).transpose(1, 2)

    def _mask(self, last: Tensor, length: int) -> Tensor:
        """0 where position j <= ``last`` and -inf after it: ``(*last.shape, length)``."""
        outside = torch.arange(length, device=self._device) > last.unsqueeze(-1)
        return torch.where(outside, -torch.inf, 0.0).to(self._dtype)

    def prefill(self, segments: Sequence[Segment]) -> Attend:
        size, device = self._page_size, self._device
        plan: list[tuple[int, int, Tensor, Tensor]] = []
        begun: list[tuple[int, int]] = []
        slots: list[Tensor] = []
        row = 0
        for part in segments:
            count = (part.stop - 1) // size + 1
            table = torch.tensor(part.pages[:count], device=device)
            positions = torch.arange(part.start, part.stop, device=device)
            slots.append(table[positions // size] * size + positions % size)
            end = row + part.stop - part.start
            if part.start == 0 and self._batches_fresh:
                begun.append((row, end))
            else:
                plan.append((row, end, table.unsqueeze(0), self._mask(positions, count * size)))
            row = end
        write = torch.cat(slots)
        fresh = FreshAttention(begun, device)
        groups = self._kv.kv_heads

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            self._write(layer, write, k, v)
            out = torch.empty(q.shape[0], q.shape[1] * q.shape[2], device=device, dtype=q.dtype)
            fresh(q, k, v, out)
            for first, end, table, mask in plan:
                n, heads, dim = end - first, q.shape[1], q.shape[2]
                shared = (groups, heads // groups, -1, dim)
                query = q[first:end].view(n, groups, heads // groups, dim).permute(1, 2, 0, 3)
                key = self._gather(self._keys, layer, table)[0].unsqueeze(1).expand(shared)
                value = self._gather(self._values, layer, table)[0].unsqueeze(1).expand(shared)
                mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
                out[first:end] = mixed.permute(2, 0, 1, 3).reshape(n, heads * dim)
            return out

        return attend

    def decode(self, tables: Tensor, positions: Tensor, spans: Sequence[Span]) -> Attend:
        size = self._page_size
        page = tables.gather(1, (positions // size).unsqueeze(1)).squeeze(1)
        write = page * size + positions % size
        plan = [
            (first, end, tables[first:end, :pages], self._mask(positions[first:end].view(-1, 1, 1), pages * size))
            for first, end, pages in spans
        ]
        groups = self._kv.kv_heads

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            self._write(layer, write, k, v)
            rows, heads, dim = q.shape
            # The query heads that share a kv head stand where several queries would: one small product per head.
            query = q.view(rows, groups, heads // groups, dim)
            mixed = [
                F.scaled_dot_product_attention(
                    query[first:end],
                    self._gather(self._keys, layer, table),
                    self._gather(self._values, layer, table),
                    attn_mask=mask,
                )
                for first, end, table, mask in plan
            ]
            return (mixed[0] if len(mixed) == 1 else torch.cat(mixed)).reshape(rows, heads * dim)

        return attend
