"""Attention of whole sequences, many at once, against each on its own."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from omni.engines.torch import KVShape
from omni.engines.torch.attention import SdpaAttention, Segment
from omni.engines.torch.fresh import FreshAttention

CPU = torch.device("cpu")
LENGTHS = ([5], [7, 7, 7], [1, 2, 3, 50, 40, 45, 1], [16, 17, 300])


def alone(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    share = q.shape[1] // k.shape[1]
    key, value = (x.repeat_interleave(share, 1).transpose(0, 1) for x in (k, v))
    mixed = F.scaled_dot_product_attention(q.transpose(0, 1), key, value, is_causal=True)
    return mixed.transpose(0, 1).reshape(len(q), -1)


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 2), (3, 3), (4, 1)])
def test_sequences_do_not_see_each_other(lengths: list[int], heads: int, kv_heads: int) -> None:
    torch.manual_seed(0)
    before, total = 3, sum(lengths)  # rows of somebody else
    q = torch.randn(before + total, heads, 8)
    k, v = torch.randn(2, before + total, kv_heads, 8)
    ends = torch.tensor(lengths).cumsum(0) + before
    sequences = [(int(end) - length, int(end)) for end, length in zip(ends, lengths, strict=True)]
    out = torch.full((before + total, heads * 8), 7.0)
    FreshAttention(sequences, CPU)(q, k, v, out)
    assert torch.all(out[:before] == 7.0)
    for first, end in sequences:
        torch.testing.assert_close(out[first:end], alone(q[first:end], k[first:end], v[first:end]))


def test_a_prefill_of_begun_and_new_sequences_is_the_same_either_way(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    kv = KVShape(layers=1, kv_heads=2, head_dim=8)

    def run(batched: bool) -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(1)
        attention = SdpaAttention(kv, 40, 4, device=CPU, dtype=torch.float32)
        monkeypatch.setattr(attention, "_batches_fresh", batched)
        found = []
        for parts in ([(0, 6, 0), (0, 5, 10)], [(6, 9, 0), (0, 7, 20), (5, 6, 10), (0, 8, 30)]):
            segments = [Segment(start, stop, list(range(page, page + 4))) for start, stop, page in parts]
            rows = sum(segment.stop - segment.start for segment in segments)
            q = torch.randn(rows, 4, 8, generator=generator)
            k, v = torch.randn(2, rows, 2, 8, generator=generator)
            found.append(attention.prefill(segments)(0, q, k, v))
        return found

    for one, other in zip(run(True), run(False), strict=True):
        torch.testing.assert_close(one, other)
