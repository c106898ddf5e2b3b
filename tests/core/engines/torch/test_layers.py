"""Transformer parts against their formulas."""

from __future__ import annotations

import math

import pytest
import torch

from omni.engines.torch import BlockDims, DecoderLayer, DepthTransformer, KVShape, Rope, linear
from omni.engines.torch.attention import SdpaAttention, Segment
from omni.engines.torch.graphs import bucket
from omni.engines.torch.layers import rms_norm
from omni.engines.torch.runner import spans

CPU = torch.device("cpu")


def gen(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("rows", [1, 2, 3, 8, 33])
@pytest.mark.parametrize("outputs", [64, 40, 41])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_linear(rows: int, outputs: int, bias: bool, dtype: torch.dtype) -> None:
    x = torch.randn(rows, 96, generator=gen(0)).to(dtype)
    w = torch.randn(outputs, 96, generator=gen(1)).to(dtype)
    b = torch.randn(outputs, generator=gen(2)).to(dtype) if bias else None
    expected = x.double() @ w.double().t() + (b.double() if b is not None else 0)
    found = linear(x, w, b)
    assert found.shape == (rows, outputs)
    assert found.is_contiguous()
    tolerance = 1e-4 if dtype == torch.float32 else 0.5
    torch.testing.assert_close(found.double(), expected, atol=tolerance, rtol=1e-2)


@pytest.mark.parametrize("shape", [(1, 96), (5, 96), (3, 4, 8)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rms_norm(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = (torch.randn(shape, generator=gen(0)) * 3).to(dtype)
    gain = torch.randn(shape[-1], generator=gen(1)).to(dtype)
    expected = x.double() / (x.double().square().mean(-1, keepdim=True) + 0.01).sqrt() * gain.double()
    found = rms_norm(x, gain, 0.01)
    assert found.dtype == dtype
    tolerance = 1e-6 if dtype == torch.float32 else 0.02
    torch.testing.assert_close(found.double(), expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("interleaved", [True, False])
def test_rope_rotates_pairs_by_their_angle(interleaved: bool) -> None:
    rope = Rope(8, 100.0, 50, device=CPU, interleaved=interleaved)
    x = torch.randn(2, 3, 8, generator=gen(0))
    positions = torch.tensor([0, 37])
    found = rope.rotate(x, rope.at(positions))
    torch.testing.assert_close(found[0], x[0])
    for j in range(4):
        a, b = (2 * j, 2 * j + 1) if interleaved else (j, j + 4)
        angle = 37 / 100 ** (2 * j / 8)
        c, s = math.cos(angle), math.sin(angle)
        torch.testing.assert_close(found[1, :, a], x[1, :, a] * c - x[1, :, b] * s)
        torch.testing.assert_close(found[1, :, b], x[1, :, a] * s + x[1, :, b] * c)


def test_rope_table_can_be_rounded() -> None:
    table = torch.view_as_real(Rope(8, 1e4, 100, device=CPU, rounding=torch.bfloat16).table)
    assert torch.equal(table, table.bfloat16().float())


def naive(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Causal attention of one sequence, ``(T, H, h)``, heads in a loop."""
    share = q.shape[1] // k.shape[1]
    out = torch.empty_like(q)
    for head in range(q.shape[1]):
        scores = q[:, head] @ k[:, head // share].t() / q.shape[2] ** 0.5
        scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -math.inf)
        out[:, head] = scores.softmax(-1) @ v[:, head // share]
    return out.reshape(len(q), -1)


def test_paged_attention_equals_attention() -> None:
    """Three sequences over scattered pages: prefill in chunks, then decode with and without spans."""
    kv = KVShape(layers=2, kv_heads=2, head_dim=8)
    paged = SdpaAttention(kv, 40, 4, device=CPU, dtype=torch.float32)
    lengths = [5, 14, 30]
    order = torch.randperm(40, generator=gen(3)) + 1
    tables = [order[i * 8 : (i + 1) * 8].tolist() for i in range(3)]
    data = [[torch.randn(n + 1, h, 8, generator=gen(n + h)) for h in (4, 2, 2)] for n in lengths]
    expected = [naive(*d) for d in data]
    for layer in range(2):
        first = paged.prefill([Segment(0, n // 2, t) for n, t in zip(lengths, tables, strict=True)])
        rest = paged.prefill([Segment(n // 2, n, t) for n, t in zip(lengths, tables, strict=True)])
        for attend, part in ((first, lambda n: slice(0, n // 2)), (rest, lambda n: slice(n // 2, n))):
            q, k, v = (torch.cat([d[i][part(n)] for d, n in zip(data, lengths, strict=True)]) for i in range(3))
            found = attend(layer, q, k, v)
            torch.testing.assert_close(found, torch.cat([e[part(n)] for e, n in zip(expected, lengths, strict=True)]))
        last = torch.cat([e[-1:] for e in expected])
        for groups in ([(0, 3, 8)], [(0, 1, 2), (1, 2, 4), (2, 3, 8)]):
            attend = paged.decode(torch.tensor(tables), torch.tensor(lengths), groups)
            q, k, v = (torch.stack([d[i][-1] for d in data]) for i in range(3))
            torch.testing.assert_close(attend(layer, q, k, v), last)


def test_depth_generation_equals_teacher_forcing() -> None:
    dims = BlockDims(dim=24, heads=4, kv_heads=2, head_dim=8, ffn=40, eps=1e-6)
    layers = [DecoderLayer(dims, device=CPU, dtype=torch.float32) for _ in range(2)]
    norm = torch.nn.Parameter(torch.ones(24), requires_grad=False)
    depth = DepthTransformer(layers, norm, Rope(8, 1e4, 6, device=CPU))
    for parameter in depth.parameters():
        parameter.normal_(0, 0.3, generator=gen(0))
    table, head = torch.randn(10, 24, generator=gen(1)), torch.randn(10, 24, generator=gen(2))
    condition, first = torch.randn(5, 24, generator=gen(3)), torch.arange(5)
    seen = []

    def pick(position: int, hidden: torch.Tensor) -> torch.Tensor:
        seen.append(hidden)
        return (hidden @ head.t()).argmax(-1)

    codes = depth.generate(condition, first, 6, lambda i, code: table[code] + i, pick)
    inputs = torch.stack([condition] + [table[codes[:, i]] + i for i in range(5)], 1)
    hidden = depth(inputs)
    torch.testing.assert_close(torch.stack(seen, 1), hidden[:, 1:], atol=1e-5, rtol=1e-5)
    assert torch.equal(codes[:, 0], first)
    assert torch.equal(codes[:, 1:], (hidden[:, 1:] @ head.t()).argmax(-1))
    assert torch.equal(depth.generate(condition, first, 1, lambda i, c: table[c], pick), first[:, None])


def test_spans_pad_no_row_beyond_twice_its_context() -> None:
    assert spans([3]) == [(0, 1, 3)]
    assert spans([1, 2, 2, 3, 6, 7, 40]) == [(0, 3, 2), (3, 5, 6), (5, 6, 7), (6, 7, 40)]


def test_buckets() -> None:
    assert [bucket(v, 24) for v in (1, 2, 3, 9, 17, 24)] == [1, 2, 4, 16, 24, 24]
    assert bucket(3, 100, 16) == 16
