"""Weights laid out once for the kernels that multiply by them, on CPUs where that pays."""

from __future__ import annotations

import platform
from collections.abc import Iterable

import torch
from torch import Tensor, nn

_MIN_ROWS = 1 if torch.backends.cpu.get_cpu_capability() == "AVX2" else 4
"""With AVX-512, oneDNN's kernels for fewer rows read the weight more slowly than the one for four."""


def can_pack(weight: Tensor) -> bool:
    """Whether :func:`pack` takes this weight: float32 on an x86 CPU."""
    return (
        weight.device.type == "cpu"
        and weight.dtype == torch.float32
        and platform.machine() in ("x86_64", "AMD64")
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )


def pack(weight: Tensor) -> Tensor:
    """``weight`` ``(out, in)`` as oneDNN wants it, as torch's own compiler does it: a plain product packs its weight
    anew in every call, which with few rows costs as much as the product. It is good for :func:`packed_linear` alone."""
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight)
    return packed


def packed_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``x @ weight.T + bias`` for ``x`` ``(M, in)`` and a weight from :func:`pack`."""
    count = x.shape[0]
    if count < _MIN_ROWS:
        x = torch.cat([x] * -(-_MIN_ROWS // count))
    y: Tensor = torch.ops.mkldnn._linear_pointwise.default(x, weight, bias, "none", [], "")
    return y[:count]


def pack_products(modules: Iterable[nn.Module]) -> None:
    """Pack the weights, or lists of weights, that modules name in ``products``; again is nothing. A module names what
    it uses in :func:`omni.engines.torch.linear` alone."""
    for module in modules:
        for name in getattr(module, "products", ()):
            found = getattr(module, name)
            if isinstance(found, nn.ParameterList):
                for index, weight in enumerate(found):
                    found[index] = _packed(weight)
            elif found is not None:
                setattr(module, name, _packed(found))


def _packed(weight: nn.Parameter) -> nn.Parameter:
    if weight.is_mkldnn or not can_pack(weight):
        return weight
    return nn.Parameter(pack(weight), requires_grad=False)
