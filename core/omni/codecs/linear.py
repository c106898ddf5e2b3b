"""Matrix products with a weight that stays the same."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from omni.engines.torch.packing import can_pack, pack, packed_linear


class Linear:
    """``x @ weight.T + bias`` with ``weight`` ``(out, in)``, packed where that pays."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.bias = bias
        self._weight = pack(weight) if can_pack(weight) else weight

    def __call__(self, x: Tensor) -> Tensor:
        """``(..., in)`` to ``(..., out)``."""
        if not self._weight.is_mkldnn:
            return F.linear(x, self._weight, self.bias)
        return packed_linear(x.reshape(-1, x.shape[-1]), self._weight, self.bias).view(*x.shape[:-1], -1)
