"""Packed weights give the same products, wherever packing is possible."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from omni.engines.torch import linear
from omni.engines.torch.packing import can_pack, pack, pack_products

WEIGHT = torch.randn(48, 32, generator=torch.Generator().manual_seed(0))
able = pytest.mark.skipif(not can_pack(WEIGHT), reason="this processor's kernels take plain weights")


class Part(nn.Module):
    products = ("one", "many", "none")

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Parameter(WEIGHT.clone(), requires_grad=False)
        self.many = nn.ParameterList([nn.Parameter(WEIGHT + i, requires_grad=False) for i in range(3)])
        self.none = None
        self.other = nn.Parameter(WEIGHT.clone(), requires_grad=False)


@able
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 16, 70])
@pytest.mark.parametrize("bias", [None, torch.arange(48.0)])
def test_products_are_the_same(rows: int, bias: torch.Tensor | None) -> None:
    x = torch.randn(rows, 32, generator=torch.Generator().manual_seed(rows))
    torch.testing.assert_close(linear(x, pack(WEIGHT), bias), F.linear(x, WEIGHT, bias), atol=1e-5, rtol=1e-5)


@able
def test_what_a_module_names_is_packed_once() -> None:
    part = Part()
    pack_products(part.modules())
    first = [part.one, *part.many]
    assert all(weight.is_mkldnn for weight in first)
    assert not part.other.is_mkldnn
    pack_products(part.modules())
    assert [id(w) for w in first] == [id(part.one), *map(id, part.many)]
    for weight, plain in zip(first, (WEIGHT, WEIGHT, WEIGHT + 1, WEIGHT + 2), strict=True):
        assert torch.equal(weight.to_dense(), plain)


def test_other_types_stay_as_they_are() -> None:
    assert not can_pack(WEIGHT.bfloat16())
    assert not can_pack(WEIGHT.to("meta"))
