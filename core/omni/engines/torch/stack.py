"""The slow transformer: a stack of decoder layers that an engine may replace by layers of its own.

A model takes the class of its stack as an argument, so the same model runs on this one here, and on one of an engine's
parallel, quantised layers elsewhere. Weights reach either the same way, layer by layer, as a :class:`DecoderLayer`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from omni.engines.torch.layers import BlockDims, DecoderLayer, Rope, weight
from omni.engines.torch.model import KVShape


@dataclass(frozen=True)
class StackDims:
    """``layers`` blocks, then a norm; ``rope_*`` as in :class:`Rope`."""

    block: BlockDims
    layers: int
    max_positions: int
    rope_base: float
    rope_interleaved: bool = True
    rope_rounding: torch.dtype | None = None

    @property
    def kv(self) -> KVShape:
        return KVShape(self.layers, self.block.kv_heads, self.block.head_dim)

    def rope(self, device: torch.device) -> Rope:
        return Rope(
            self.block.head_dim,
            self.rope_base,
            self.max_positions,
            device=device,
            interleaved=self.rope_interleaved,
            rounding=self.rope_rounding,
        )

    def template(self) -> DecoderLayer:
        """A layer without storage, for its names and shapes."""
        return DecoderLayer(self.block, device=torch.device("meta"), dtype=torch.float32)


class Stack(Protocol):
    """What a model needs of its slow transformer, which is an ``nn.Module``."""

    @property
    def norm(self) -> Tensor:
        """Gain of the last norm ``(dim,)``; loading fills it in place."""

    def __call__(self, x: Tensor, positions: Tensor, attend: Any) -> Tensor:
        """Inputs ``(N, dim)`` at int64 ``(N,)`` positions to normed hidden states ``(N, dim)``. ``attend`` is what the
        engine gave :meth:`TorchARModel.forward`; only stack and engine know its type."""

    def fill(self, read: Callable[[int, DecoderLayer], None]) -> None:
        """Call ``read(index, layer)`` for every layer, which is to fill that layer's parameters in place."""


class StackFactory(Protocol):
    def __call__(self, dims: StackDims, *, device: torch.device, dtype: torch.dtype) -> Stack: ...


class LayerStack(nn.Module):
    """A :class:`Stack` of this package's layers, for the torch engine."""

    def __init__(self, dims: StackDims, *, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        self._layers = [DecoderLayer(dims.block, device=device, dtype=dtype) for _ in range(dims.layers)]
        self.layers = nn.ModuleList(self._layers)
        self.norm = weight(dims.block.dim, device=device, dtype=dtype)
        self.rope = dims.rope(device)

    def forward(self, x: Tensor, positions: Tensor, attend: Any) -> Tensor:
        factors = self.rope.at(positions)
        for index, layer in enumerate(self._layers):
            x = layer(x, self.rope, factors, lambda q, k, v, i=index: attend(i, q, k, v))
        return self._layers[0].norm(x, self.norm)

    def fill(self, read: Callable[[int, DecoderLayer], None]) -> None:
        for index, layer in enumerate(self._layers):
            read(index, layer)
