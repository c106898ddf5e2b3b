"""Attention of whole sequences from their first position on, with nothing of them in any cache: many at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

_STRETCH = 1.5
"""Sequences share a call when the longest is at most this many times as long as the shortest."""


class _Group(NamedTuple):
    """``number`` sequences, laid out with ``length`` places each: position i of theirs is row ``rows[i]`` of the pass
    and place ``places[i]`` of the layout."""

    number: int
    length: int
    rows: Tensor
    places: Tensor


class FreshAttention:
    """Causal attention within each of some sequences: a few large calls instead of several small ones for each.

    Where a sequence is shorter than its place, what follows it is masked for all that comes before.
    """

    def __init__(self, sequences: Sequence[tuple[int, int]], device: torch.device) -> None:
        """``sequences``: first row and end row of each within a pass."""
        self._groups: list[_Group] = []
        ordered = sorted(sequences, key=lambda s: s[1] - s[0])
        first = 0
        for index in range(1, len(ordered) + 1):
            shortest = ordered[first][1] - ordered[first][0]
            if index == len(ordered) or ordered[index][1] - ordered[index][0] > _STRETCH * shortest:
                self._groups.append(_group(ordered[first:index], device))
                first = index

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, out: Tensor) -> None:
        """``q`` ``(N, heads, head_dim)``, ``k`` and ``v`` ``(N, kv_heads, head_dim)``: fill the rows of the sequences
        in ``out`` ``(N, heads * head_dim)``."""
        heads, dim, groups = q.shape[1], q.shape[2], k.shape[1]
        share = heads // groups
        for group in self._groups:
            number, length = group.number, group.length
            query = _laid_out(q, group).view(number, length, groups, share, dim).permute(0, 2, 3, 1, 4)
            key, value = (_laid_out(x, group).view(number, length, groups, dim).transpose(1, 2) for x in (k, v))
            shared = (number * groups, share, length, dim)
            mixed = F.scaled_dot_product_attention(
                query.reshape(shared),
                key.reshape(number * groups, 1, length, dim).expand(shared),
                value.reshape(number * groups, 1, length, dim).expand(shared),
                is_causal=True,
            )
            flat = mixed.view(number, heads, length, dim).transpose(1, 2).reshape(number * length, heads * dim)
            out.index_copy_(0, group.rows, flat if len(group.rows) == len(flat) else flat[group.places])


def _laid_out(x: Tensor, group: _Group) -> Tensor:
    """Rows of a pass at their places, zeros elsewhere: ``(number * length, heads, head_dim)``."""
    rows, places = x[group.rows], group.number * group.length
    if len(rows) == places:
        return rows
    return x.new_zeros(places, *x.shape[1:]).index_copy_(0, group.places, rows)


def _group(sequences: Sequence[tuple[int, int]], device: torch.device) -> _Group:
    length = max(end - first for first, end in sequences)
    rows = torch.cat([torch.arange(first, end) for first, end in sequences])
    places = torch.cat([torch.arange(end - first) + i * length for i, (first, end) in enumerate(sequences)])
    return _Group(len(sequences), length, rows.to(device), places.to(device))
