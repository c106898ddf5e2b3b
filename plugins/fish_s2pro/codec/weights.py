"""How this codec's checkpoint keeps its tensors, and what random ones look like."""

from __future__ import annotations

import torch
from torch import Tensor

from omni.codecs import WeightSource


def folded(weights: WeightSource, gain: str, direction: str, *shape: int) -> Tensor:
    """Weight normalisation resolved: ``g v / |v|`` with the norm over all dimensions but the first."""
    g = weights.raw(gain, shape[0], *[1] * (len(shape) - 1))
    v = weights.raw(direction, *shape)
    norm = torch.linalg.vector_norm(v.flatten(1), dim=1).view_as(g)
    return v.mul_(g / norm).to(weights.dtype)


def drawn(name: str, noise: Tensor) -> Tensor | None:
    """Random tensors of this codec that are not of the usual kind (see :class:`omni.codecs.RandomWeights`): gains,
    slopes and codebooks."""
    leaf = name.rsplit(".", 1)[-1]
    if leaf in ("original0", "weight_g"):
        return torch.full_like(noise, 0.7)
    if leaf == "alpha":
        return torch.ones_like(noise)
    return noise if name.endswith("codebook.weight") else None
