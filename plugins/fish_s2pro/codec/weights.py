"""Where layers get their tensors from: each asks by name and shape, so one description of the model serves loading,
random weights and the list of names that a checkpoint must have."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor


class WeightSource(Protocol):
    """``dtype`` is the type that the model computes in."""

    dtype: torch.dtype

    def raw(self, name: str, *shape: int) -> Tensor:
        """A float32 tensor of that shape on the target device; the caller may keep and change it."""

    def take(self, name: str, *shape: int) -> Tensor:
        """As :meth:`raw`, in ``dtype``."""


def folded(weights: WeightSource, gain: str, direction: str, *shape: int) -> Tensor:
    """Weight normalisation resolved: ``g v / |v|`` with the norm over all dimensions but the first."""
    g = weights.raw(gain, shape[0], *[1] * (len(shape) - 1))
    v = weights.raw(direction, *shape)
    norm = torch.linalg.vector_norm(v.flatten(1), dim=1).view_as(g)
    return v.mul_(g / norm).to(weights.dtype)


class ShapeRecorder:
    """Gives empty tensors and notes what was asked for."""

    def __init__(self) -> None:
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.dtype = torch.float32

    def raw(self, name: str, *shape: int) -> Tensor:
        self.shapes[name] = shape
        return torch.empty(shape, device="meta")

    take = raw


class RandomWeights:
    """Random tensors of sensible size, for benchmarks and for trying the API without a checkpoint. The same seed
    gives the same weights."""

    def __init__(self, seed: int, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self._device = device
        self.dtype = dtype

    def raw(self, name: str, *shape: int) -> Tensor:
        return self._draw(name, shape).to(self._device)

    def take(self, name: str, *shape: int) -> Tensor:
        return self.raw(name, *shape).to(self.dtype)

    def _draw(self, name: str, shape: tuple[int, ...]) -> Tensor:
        leaf = name.rsplit(".", 1)[-1]
        if leaf in ("original0", "weight_g"):
            return torch.full(shape, 0.7)
        if leaf == "alpha" or (leaf == "weight" and len(shape) == 1):
            return torch.ones(shape)
        noise = torch.randn(shape, generator=self._generator)
        if leaf == "bias":
            return noise.mul_(0.02)
        if leaf == "gamma":
            return noise.mul_(0.1)
        if name.endswith("codebook.weight"):
            return noise
        return noise.mul_(noise[0].numel() ** -0.5)
