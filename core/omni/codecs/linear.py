"""Matrix products with a weight that stays the same."""

from __future__ import annotations

import platform

import torch
import torch.nn.functional as F
from torch import Tensor

_MIN_ROWS = 4
"""oneDNN's kernels for fewer rows read the weight more slowly than the one for four."""


class Linear:
    """``x @ weight.T + bias`` with ``weight`` ``(out, in)``.

    On an x86 CPU the float32 weight is laid out once for oneDNN, as torch's own compiler does it: MKL, which a plain
    linear layer calls, packs the weight anew in every call, and that doubles the time of a product with few rows.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.bias = bias
        self._packed = _can_pack(weight)
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight) if self._packed else weight

    def __call__(self, x: Tensor) -> Tensor:
        """``(..., in)`` to ``(..., out)``."""
        if not self._packed:
            return F.linear(x, self._weight, self.bias)
        rows = x.reshape(-1, x.shape[-1])
        count = rows.shape[0]
        if count < _MIN_ROWS:
            rows = torch.cat([rows] * -(-_MIN_ROWS // count))
        y: Tensor = torch.ops.mkldnn._linear_pointwise.default(rows, self._weight, self.bias, "none", [], "")
        return y[:count].view(*x.shape[:-1], -1)


def _can_pack(weight: Tensor) -> bool:
    return (
        weight.device.type == "cpu"
        and weight.dtype == torch.float32
        and platform.machine() in ("x86_64", "AMD64")
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )
