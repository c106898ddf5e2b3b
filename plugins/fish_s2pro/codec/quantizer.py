"""Codes to latents and back. Codebook 0 is the semantic one, the others are residual."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fish_s2pro.codec.config import QuantizerConfig
from fish_s2pro.codec.weights import folded
from omni.codecs import WeightSource


def _prefixes(config: QuantizerConfig) -> list[str]:
    residual = [f"quantizer.quantizer.quantizers.{i}" for i in range(config.n_codebooks)]
    return ["quantizer.semantic_quantizer.quantizers.0", *residual]


def _projection(weights: WeightSource, prefix: str, outputs: int, inputs: int) -> tuple[Tensor, Tensor]:
    weight = folded(weights, f"{prefix}.weight_g", f"{prefix}.weight_v", outputs, inputs, 1)
    return weight.squeeze(2), weights.take(f"{prefix}.bias", outputs)


class Dequantizer:
    """The sum over codebooks of a projected codebook row, as one gather and one matrix product."""

    def __init__(self, weights: WeightSource, config: QuantizerConfig) -> None:
        sizes, dim = config.codebook_sizes, config.codebook_dim
        tables, projections, biases = [], [], []
        for prefix, size in zip(_prefixes(config), sizes, strict=True):
            tables.append(weights.take(f"{prefix}.codebook.weight", size, dim))
            weight, bias = _projection(weights, f"{prefix}.out_proj", config.input_dim, dim)
            projections.append(weight)
            biases.append(bias)
        self.table = torch.cat(tables)
        self.projection = torch.cat(projections, dim=1)
        self.bias = torch.stack(biases).sum(0)
        size_column = torch.tensor(sizes, device=self.table.device)[:, None]
        self.last = size_column - 1
        self.offset = size_column.cumsum(0) - size_column

    def __call__(self, codes: Tensor) -> Tensor:
        """int64 ``(batch, codebooks, frames)`` to ``(batch, dim, frames)``. Codes above a codebook's last entry
        mean that entry; the argument is left as it is."""
        rows = torch.minimum(codes, self.last) + self.offset
        vectors = F.embedding(rows.transpose(1, 2), self.table).flatten(2)
        return F.linear(vectors, self.projection, self.bias).transpose(1, 2)


class _Codebook:
    def __init__(self, weights: WeightSource, prefix: str, size: int, config: QuantizerConfig) -> None:
        self.inward, self.inward_bias = _projection(weights, f"{prefix}.in_proj", config.codebook_dim, config.input_dim)
        self.table = weights.take(f"{prefix}.codebook.weight", size, config.codebook_dim)
        self.directions = F.normalize(self.table)
        self.outward, self.outward_bias = _projection(
            weights, f"{prefix}.out_proj", config.input_dim, config.codebook_dim
        )

    def project(self, x: Tensor) -> Tensor:
        return F.linear(x, self.inward, self.inward_bias)

    def nearest(self, projected: Tensor) -> Tensor:
        """Index of the entry of greatest cosine similarity."""
        return F.linear(F.normalize(projected, dim=-1), self.directions).argmax(-1)

    def rebuild(self, codes: Tensor) -> Tensor:
        """What the codes stand for: the codebook rows as they are, not normalised, projected outward."""
        return F.linear(F.embedding(codes, self.table), self.outward, self.outward_bias)


class Quantizer:
    """Each codebook in turn encodes what the ones before it left over."""

    def __init__(self, weights: WeightSource, config: QuantizerConfig) -> None:
        prefixes = zip(_prefixes(config), config.codebook_sizes, strict=True)
        self.codebooks = [_Codebook(weights, prefix, size, config) for prefix, size in prefixes]

    def __call__(self, x: Tensor) -> Tensor:
        """``(batch, dim, frames)`` to int64 codes ``(batch, codebooks, frames)``."""
        rest = x.transpose(1, 2)
        codes = []
        for codebook in self.codebooks:
            codes.append(codebook.nearest(codebook.project(rest)))
            rest = rest - codebook.rebuild(codes[-1])
        return torch.stack(codes, dim=1)
