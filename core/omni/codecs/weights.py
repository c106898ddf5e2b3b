"""Where layers get their tensors from: each asks by name and shape, so one description of the model serves loading,
random weights and the list of names that a checkpoint must have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from omni.engines.torch import Checkpoint


class WeightSource(Protocol):
    """``dtype`` is the type that the model computes in."""

    dtype: torch.dtype

    def raw(self, name: str, *shape: int) -> Tensor:
        """A float32 tensor of that shape on the target device; the caller may keep and change it."""

    def take(self, name: str, *shape: int) -> Tensor:
        """As :meth:`raw`, in ``dtype``."""


class ShapeRecorder:
    """Gives empty tensors and notes what was asked for."""

    def __init__(self) -> None:
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.dtype = torch.float32

    def raw(self, name: str, *shape: int) -> Tensor:
        self.shapes[name] = shape
        return torch.empty(shape, device="meta")

    take = raw


class CheckpointWeights:
    """Tensors of a safetensors checkpoint.

    Raises:
        WeightsError: when a tensor that is asked for is missing or has another shape; the message names it.
    """

    def __init__(self, checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype) -> None:
        self._checkpoint = checkpoint
        self._device = device
        self.dtype = dtype

    def raw(self, name: str, *shape: int) -> Tensor:
        tensor = torch.empty(shape, device=self._device)
        self._checkpoint.copy(name, tensor)
        return tensor

    def take(self, name: str, *shape: int) -> Tensor:
        tensor = torch.empty(shape, device=self._device, dtype=self.dtype)
        self._checkpoint.copy(name, tensor)
        return tensor


Draw = Callable[[str, Tensor], Tensor | None]
"""``(name, noise) -> tensor``, or None for the usual: a model's own say about how random tensors look."""


class RandomWeights:
    """Random tensors of sensible size, for benchmarks and for trying the API without a checkpoint. The same seed
    gives the same weights. ``draw`` gets each name with normal noise of its shape, in which it may write."""

    def __init__(self, seed: int, device: torch.device, dtype: torch.dtype, draw: Draw | None = None) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self._device = device
        self._draw = draw
        self.dtype = dtype

    def raw(self, name: str, *shape: int) -> Tensor:
        noise = torch.randn(shape, generator=self._generator)
        drawn = self._draw(name, noise) if self._draw is not None else None
        return (drawn if drawn is not None else self._usual(name, noise)).to(self._device)

    def take(self, name: str, *shape: int) -> Tensor:
        return self.raw(name, *shape).to(self.dtype)

    @staticmethod
    def _usual(name: str, noise: Tensor) -> Tensor:
        leaf = name.rsplit(".", 1)[-1]
        if leaf == "bias":
            return noise.mul_(0.02)
        if leaf == "gamma":
            return noise.mul_(0.1)
        if noise.dim() == 1:
            return noise.fill_(1.0)
        return noise.mul_(noise[0].numel() ** -0.5)
