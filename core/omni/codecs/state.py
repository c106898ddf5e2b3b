"""What a codec's layers remember of the streams they work on."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import torch
from torch import Tensor


class StreamState:
    """One row per stream in a buffer per layer, so that any set of streams makes a batch by gathering rows.

    A buffer is made when its layer first asks for it. ``max_frames`` bounds the frames of one step, which fixes
    the size of the key/value rings.
    """

    def __init__(self, rows: int, max_frames: int, device: torch.device, dtype: torch.dtype) -> None:
        self.rows = rows
        self.max_frames = max_frames
        self.device = device
        self.dtype = dtype
        self._buffers: dict[Hashable, Tensor] = {}

    def buffer(self, layer: Hashable, *shape: int) -> Tensor:
        """The ``(rows, *shape)`` buffer of a layer, zero at first."""
        found = self._buffers.get(layer)
        if found is None:
            found = torch.zeros(self.rows, *shape, device=self.device, dtype=self.dtype)
            self._buffers[layer] = found
        return found

    def grow(self, rows: int) -> None:
        """Make room for more streams; the rows in use keep their content."""
        for layer, old in self._buffers.items():
            new = torch.zeros(rows, *old.shape[1:], device=self.device, dtype=self.dtype)
            new[: self.rows] = old
            self._buffers[layer] = new
        self.rows = rows

    def clear(self, row: int) -> None:
        """Forget a stream: silence before its first frame, whatever the row held before."""
        for buffer in self._buffers.values():
            buffer[row].zero_()

    def copy_of(self, row: int) -> Mapping[Hashable, Tensor]:
        """What a stream has left behind, for :meth:`restore`."""
        return {layer: buffer[row].clone() for layer, buffer in self._buffers.items()}

    def restore(self, row: int, saved: Mapping[Hashable, Tensor]) -> None:
        """Make a stream go on from where another one was."""
        self.clear(row)
        for layer, content in saved.items():
            self.buffer(layer, *content.shape)[row] = content

    @property
    def bytes_per_row(self) -> int:
        return sum(buffer[0].nbytes for buffer in self._buffers.values())


class Step:
    """One batch on its way through the layers: its rows in the state and the frames that each stream has had.

    ``seen``: int64 ``(batch,)``. With neighbouring rows the layers work on views of the state, else on copies.
    """

    __slots__ = ("index", "rows", "seen", "state")

    def __init__(self, state: StreamState, rows: Sequence[int], seen: Sequence[int]) -> None:
        self.state = state
        self.index = torch.tensor(rows, device=state.device)
        self.seen = torch.tensor(seen, device=state.device)
        first = rows[0]
        neighbours = list(rows) == list(range(first, first + len(rows)))
        self.rows: slice | Tensor = slice(first, first + len(rows)) if neighbours else self.index

    def behind(self, layer: Hashable, channels: int, pad: int, length: int, *, channels_last: bool) -> Tensor:
        """A new ``(batch, channels, pad + length)`` tensor that starts with the last ``pad`` columns that the
        layer has seen; the caller fills the rest and gives it back to :meth:`keep`. ``channels_last``: the columns,
        not the channels, are contiguous in memory."""
        batch, columns = self.seen.shape[0], pad + length
        shape = (batch, columns, channels) if channels_last else (batch, channels, columns)
        joined = torch.empty(shape, device=self.state.device, dtype=self.state.dtype)
        if channels_last:
            joined = joined.transpose(1, 2)
        if pad:
            joined[..., :pad] = self.state.buffer(layer, channels, pad)[self.rows]
        return joined

    def keep(self, layer: Hashable, joined: Tensor, pad: int) -> None:
        """Remember the last ``pad`` columns for the next step."""
        if pad:
            self.state.buffer(layer, joined.shape[1], pad)[self.rows] = joined[..., -pad:]
