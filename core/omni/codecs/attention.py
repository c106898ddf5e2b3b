"""Attention to the last positions of a stream, whose keys and values live in the stream's state."""

from __future__ import annotations

from collections.abc import Hashable

import torch
import torch.nn.functional as F
from torch import Tensor

from omni.codecs.state import Step


class Rotations:
    """Rotary factors ``exp(i * position / base ** (2 j / head_dim))``, for as many positions as are asked for. Source:
    RoFormer, eq. 15.

    ``rounding`` rounds cosine and sine to a lower precision, as models do that were trained with such tables. The
    table is made on the CPU whatever the device, so that its rounding never differs.
    """

    def __init__(
        self, head_dim: int, base: float, device: torch.device, *, rounding: torch.dtype | None = None
    ) -> None:
        exponent = torch.arange(0, head_dim, 2).float() / head_dim
        self._frequencies = 1.0 / base**exponent
        self._device = device
        self._rounding = rounding
        self._table = self._make(1024)

    def _make(self, length: int) -> Tensor:
        angles = torch.outer(torch.arange(length).float(), self._frequencies)
        parts = torch.stack((angles.cos(), angles.sin()), -1)
        if self._rounding is not None:
            parts = parts.to(self._rounding).float()
        return torch.view_as_complex(parts).to(self._device)

    def reserve(self, length: int) -> None:
        """Make room for positions below ``length``."""
        have = self._table.shape[0]
        if length > have:
            self._table = self._make(max(length, 2 * have))

    def __call__(self, positions: Tensor) -> Tensor:
        """complex64 factors ``(..., head_dim / 2)`` of int64 positions."""
        return self._table[positions]


def interleaved(weight: Tensor, head_dim: int) -> Tensor:
    """The rows of a query or key projection ``(heads * head_dim, in)`` whose model rotates the pairs (j, j + head_dim /
    2), in the order in which :class:`WindowView` rotates: (2 j, 2 j + 1). Scores stay the same."""
    rows, width = weight.shape
    return weight.view(-1, 2, head_dim // 2, width).transpose(1, 2).reshape(rows, width)


class WindowView:
    """What all layers of a transformer share in one step: where keys go in the ring, what each query sees, the
    rotations. A position sees itself and the ``window - 1`` positions before it.

    ``rate`` positions come per frame, ``length`` of them are new. The ring holds one step's positions more than a query
    looks back, so a step never overwrites what its own queries still see.
    """

    __slots__ = ("_mask", "_places", "_ring", "_rotations", "_step")

    def __init__(self, rotations: Rotations, step: Step, length: int, *, window: int, rate: int) -> None:
        self._step = step
        self._ring = ring = window - 1 + step.state.max_frames * rate
        positions = (step.seen * rate)[:, None] + torch.arange(length, device=step.seen.device)
        self._places = positions % ring
        turn = rotations(positions)
        # Queries and keys are turned, values stay.
        self._rotations = torch.stack((turn, turn, torch.ones_like(turn)), dim=2)[:, :, :, None]
        # A place of the ring holds the newest position that maps to it.
        newest = positions[:, -1:]
        held = newest - (newest - torch.arange(ring, device=positions.device)) % ring
        held = held[:, None]
        query = positions[:, :, None]
        self._mask = ((held >= 0) & (held <= query) & (held > query - window))[:, None]

    def attend(self, layer: Hashable, qkv: Tensor, head_dim: int) -> Tensor:
        """``(batch * length, 3 * heads * head_dim)``, queries before keys before values, to ``(batch * length, heads *
        head_dim)``."""
        batch, time = self._places.shape
        pairs = qkv.float().view(batch, time, 3, -1, head_dim // 2, 2)
        turned = torch.view_as_real(torch.view_as_complex(pairs) * self._rotations)
        heads = turned.view(batch, time, 3, -1, head_dim).to(qkv.dtype)
        step = self._step
        ring = step.state.buffer(layer, self._ring, 2, *heads.shape[3:])
        ring[step.index[:, None], self._places] = heads[:, :, 1:]
        keys, values = ring[step.rows].transpose(1, 3).unbind(2)
        mixed = F.scaled_dot_product_attention(heads[:, :, 0].transpose(1, 2), keys, values, attn_mask=self._mask)
        return mixed.transpose(1, 2).reshape(batch * time, -1)
