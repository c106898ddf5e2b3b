"""The KV cache takes memory as it is used, not as it could be."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from omni.engines.torch.attention import SdpaAttention
from omni.engines.torch.model import KVShape


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_cache_that_nobody_uses_takes_no_memory(dtype) -> None:
    kv = KVShape(layers=4, kv_heads=8, head_dim=128)
    page_bytes = 2 * kv.layers * 16 * kv.kv_heads * kv.head_dim * dtype.itemsize
    before = resident()
    attention = SdpaAttention(kv, (1 << 30) // page_bytes, 16, device=torch.device("cpu"), dtype=dtype)
    assert resident() - before < 100e6
    for pages in (*attention._keys, *attention._values):
        assert pages.dtype == dtype
        assert not pages[0].any()
        assert not pages[-1].any()
