"""Parts of a decoder-only transformer, shared by slow and depth models: linear, RMSNorm, rotary table, SwiGLU block."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from omni.engines.torch.packing import packed_linear

Heads = Callable[[Tensor, Tensor, Tensor], Tensor]
"""``(q (N, H, h), k (N, Hk, h), v (N, Hk, h)) -> (N, H * h)``: attention of one layer."""

_GROUPS = 8


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``x @ weight.T + bias`` for ``x`` ``(M, K)`` and ``weight`` ``(N, K)``.

    On CPU in float32 the kernel is chosen by M. The vendor's GEMV and small GEMM reach only half of the memory
    bandwidth at M = 1 and 2; the same product as a batch over groups of output rows reaches all of it. From M = 3
    oneDNN's kernel on the plain weight is the fastest at every size measured. A packed weight has its own.
    """
    if weight.is_mkldnn:
        return packed_linear(x, weight, bias)
    if x.device.type != "cpu" or x.dtype != torch.float32:
        return F.linear(x, weight, bias)
    m, k = x.shape
    n = weight.shape[0]
    if m <= 2 and n % _GROUPS == 0:
        # With any other strides of the column, also for m = 1, the library takes a kernel ten times slower.
        x = x if x.is_contiguous() else x.contiguous()
        columns = x.as_strided((_GROUPS, k, m), (0, 1, k))
        out = torch.bmm(weight.view(_GROUPS, n // _GROUPS, k), columns)
        out = out.view(1, n) if m == 1 else out.view(n, m).t().contiguous()
        return out if bias is None else out + bias
    if m > 2 and _onednn is not None:
        return _onednn(x, weight, bias, "none", [], "")
    return F.linear(x, weight, bias)


def _find_onednn() -> Callable[..., Tensor] | None:
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return None
    return getattr(torch.ops.mkldnn, "_linear_pointwise", None)


_onednn = _find_onednn()


def rms_norm(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    """``x / sqrt(mean(x ** 2) + eps) * gain`` over the last dimension; statistics in float32. Source: Zhang, Sennrich
    2019."""
    if x.device.type != "cpu" or x.dtype != torch.float32:
        return F.rms_norm(x, (x.shape[-1],), gain, eps)
    # On CPU torch composes rms_norm of slower reductions: this is 1.6 times as fast for one row, 10 times for hundreds.
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    scale = torch.addcmul(_scalar(eps), length, length, value=1.0 / x.shape[-1]).rsqrt_()
    return (x * scale).mul_(gain)


@cache
def _scalar(value: float) -> Tensor:
    return torch.tensor(value)


def weight(*shape: int, device: torch.device, dtype: torch.dtype) -> nn.Parameter:
    """A parameter that is neither initialised nor trained; loading fills it in place."""
    return nn.Parameter(torch.empty(*shape, device=device, dtype=dtype), requires_grad=False)


class Rope:
    """Rotary positions as a complex table ``(length, head_dim / 2)``: ``exp(i * pos / base ** (2 j / head_dim))``.

    ``rounding`` rounds cosine and sine to a lower precision, as models do that were trained with such tables.
    ``interleaved`` rotates the pairs (2j, 2j + 1), else (j, j + head_dim / 2). Source: RoFormer, eq. 15.
    """

    def __init__(
        self,
        head_dim: int,
        base: float,
        length: int,
        *,
        device: torch.device,
        interleaved: bool = True,
        rounding: torch.dtype | None = None,
    ) -> None:
        exponent = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
        angles = torch.outer(torch.arange(length, dtype=torch.float32), 1.0 / base**exponent)
        parts = torch.stack((angles.cos(), angles.sin()), -1)
        if rounding is not None:
            parts = parts.to(rounding).float()
        self.table = torch.view_as_complex(parts).to(device)
        self.interleaved = interleaved

    def at(self, positions: Tensor) -> Tensor:
        """Factors ``(N, 1, head_dim / 2)`` for int64 positions ``(N,)``, for :meth:`rotate`."""
        return self.table[positions].unsqueeze(1)

    def rotate(self, x: Tensor, factors: Tensor) -> Tensor:
        """``(N, heads, head_dim)`` rotated in float32 and cast back."""
        n, heads, dim = x.shape
        if self.interleaved:
            pairs = torch.view_as_complex(x.float().reshape(n, heads, dim // 2, 2))
            return torch.view_as_real(pairs * factors).view(n, heads, dim).to(x.dtype)
        first, second = x.float().chunk(2, -1)
        turned = torch.complex(first.contiguous(), second.contiguous()) * factors
        return torch.cat((turned.real, turned.imag), -1).to(x.dtype)


@dataclass(frozen=True)
class BlockDims:
    """Sizes and switches of one pre-norm decoder layer; ``ffn`` is the width between gate and down projection."""

    dim: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    eps: float
    qk_norm: bool = False
    qkv_bias: bool = False
    o_bias: bool = False


class DecoderLayer(nn.Module):
    """Pre-norm layer: ``x += wo attn(norm x)``; ``x += w2 (silu(w1 y) * w3 y)`` with ``y = norm x``.

    ``wqkv`` stacks the rows of q, k and v; ``w13`` stacks gate and up, so that each is one product.
    """

    products = ("wqkv", "wo", "w13", "w2")

    def __init__(self, dims: BlockDims, *, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        self.dims = d = dims
        q, kv = d.heads * d.head_dim, d.kv_heads * d.head_dim

        def make(*shape: int) -> nn.Parameter:
            return weight(*shape, device=device, dtype=dtype)

        self.attention_norm = make(d.dim)
        self.wqkv = make(q + 2 * kv, d.dim)
        self.qkv_bias = make(q + 2 * kv) if d.qkv_bias else None
        self.q_norm = make(d.head_dim) if d.qk_norm else None
        self.k_norm = make(d.head_dim) if d.qk_norm else None
        self.wo = make(d.dim, q)
        self.o_bias = make(d.dim) if d.o_bias else None
        self.ffn_norm = make(d.dim)
        self.w13 = make(2 * d.ffn, d.dim)
        self.w2 = make(d.dim, d.ffn)

    def norm(self, x: Tensor, gain: Tensor) -> Tensor:
        return rms_norm(x, gain, self.dims.eps)

    def qkv(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """``(N, dim)`` to q and k, ``(N, H + Hk, h)`` before rotation, and v ``(N, Hk, h)``."""
        d = self.dims
        heads = linear(x, self.wqkv, self.qkv_bias).view(x.shape[0], d.heads + 2 * d.kv_heads, d.head_dim)
        qk, v = torch.split(heads, [d.heads + d.kv_heads, d.kv_heads], 1)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = torch.split(qk, [d.heads, d.kv_heads], 1)
            qk = torch.cat((self.norm(q, self.q_norm), self.norm(k, self.k_norm)), 1)
        return qk, v

    def attention(self, x: Tensor, rope: Rope, factors: Tensor, attend: Heads) -> Tensor:
        """The attention branch ``(N, dim)``, before it is added to ``x``."""
        d = self.dims
        qk, v = self.qkv(self.norm(x, self.attention_norm))
        q, k = torch.split(rope.rotate(qk, factors), [d.heads, d.kv_heads], 1)
        return linear(attend(q, k, v), self.wo, self.o_bias)

    def feed_forward(self, x: Tensor) -> Tensor:
        """The SwiGLU branch ``(N, dim)``, before it is added to ``x``."""
        gate, up = linear(self.norm(x, self.ffn_norm), self.w13).chunk(2, -1)
        return linear(F.silu(gate) * up, self.w2)

    def forward(self, x: Tensor, rope: Rope, factors: Tensor, attend: Heads) -> Tensor:
        """``x`` ``(N, dim)``; ``factors`` from :meth:`Rope.at`."""
        x = x + self.attention(x, rope, factors, attend)
        return x + self.feed_forward(x)
