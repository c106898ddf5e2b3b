"""The slow transformer on SGLang's layers: its attention back ends, tensor parallelism and quantised weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from omni.engines.sglang import adapter
from omni.engines.torch import BlockDims, DecoderLayer, StackDims


@contextmanager
def defaults(device: torch.device, dtype: torch.dtype) -> Iterator[None]:
    """Where, and of which type, tensors are made that say neither."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with device:
            yield
    finally:
        torch.set_default_dtype(before)


class SGLangLayer(nn.Module):
    """One pre-norm block with the meaning of :class:`DecoderLayer`."""

    def __init__(self, dims: BlockDims, index: int, rope: nn.Module, quant: Any) -> None:
        super().__init__()
        d = dims
        prefix = f"layers.{index}"
        self._dims = d
        self._heads, self._kv_heads = adapter.attention_heads(d.heads, d.kv_heads)
        self.attention_norm = adapter.RMSNorm(d.dim, eps=d.eps)
        self.qkv = adapter.QKVParallelLinear(
            d.dim,
            d.head_dim,
            d.heads,
            d.kv_heads,
            bias=d.qkv_bias,
            quant_config=quant,
            prefix=f"{prefix}.qkv",
        )
        self.q_norm = adapter.RMSNorm(d.head_dim, eps=d.eps) if d.qk_norm else None
        self.k_norm = adapter.RMSNorm(d.head_dim, eps=d.eps) if d.qk_norm else None
        self.rope = rope
        self.attention = adapter.RadixAttention(
            self._heads,
            d.head_dim,
            d.head_dim**-0.5,
            num_kv_heads=self._kv_heads,
            layer_id=index,
            quant_config=quant,
            prefix=f"{prefix}.attention",
        )
        self.out = adapter.RowParallelLinear(
            d.heads * d.head_dim, d.dim, bias=d.o_bias, quant_config=quant, prefix=f"{prefix}.out"
        )
        self.ffn_norm = adapter.RMSNorm(d.dim, eps=d.eps)
        self.gate_up = adapter.MergedColumnParallelLinear(
            d.dim, [d.ffn, d.ffn], bias=False, quant_config=quant, prefix=f"{prefix}.gate_up"
        )
        self.activation = adapter.SiluAndMul()
        self.down = adapter.RowParallelLinear(d.ffn, d.dim, bias=False, quant_config=quant, prefix=f"{prefix}.down")

    def forward(self, x: Tensor, residual: Tensor | None, positions: Tensor, batch: Any) -> tuple[Tensor, Tensor]:
        """``x`` is what the layer before has added last, ``residual`` the sum before it."""
        if residual is None:
            x, residual = self.attention_norm(x), x
        else:
            x, residual = self.attention_norm(x, residual)
        d = self._dims
        widths = [self._heads * d.head_dim, self._kv_heads * d.head_dim, self._kv_heads * d.head_dim]
        q, k, v = self.qkv(x)[0].split(widths, -1)
        if self.q_norm is not None and self.k_norm is not None:
            q = self.q_norm(q.reshape(-1, d.head_dim)).view(q.shape)
            k = self.k_norm(k.reshape(-1, d.head_dim)).view(k.shape)
        q, k = self.rope(positions, q, k)
        x, residual = self.ffn_norm(self.out(self.attention(q, k, v, batch))[0], residual)
        return self.down(self.activation(self.gate_up(x)[0]))[0], residual

    def take(self, layer: DecoderLayer) -> None:
        """Copy this rank's share of a layer's weights."""
        d = self._dims
        widths = [d.heads * d.head_dim, d.kv_heads * d.head_dim, d.kv_heads * d.head_dim]
        for name, part in zip("qkv", torch.split(layer.wqkv, widths), strict=True):
            _put(self.qkv.weight, part, name)
        if layer.qkv_bias is not None:
            for name, part in zip("qkv", torch.split(layer.qkv_bias, widths), strict=True):
                _put(self.qkv.bias, part, name)
        for index, part in enumerate(torch.split(layer.w13, d.ffn)):
            _put(self.gate_up.weight, part, index)
        _put(self.out.weight, layer.wo)
        if layer.o_bias is not None:
            _put(self.out.bias, layer.o_bias)
        _put(self.down.weight, layer.w2)
        norms = [(self.attention_norm, layer.attention_norm), (self.ffn_norm, layer.ffn_norm)]
        for norm, gain in (*norms, (self.q_norm, layer.q_norm), (self.k_norm, layer.k_norm)):
            if norm is not None and gain is not None:
                norm.weight.copy_(gain)


def _put(parameter: Any, value: Tensor, *part: Any) -> None:
    """Through the parameter's own loader, which knows its shard and its quantisation."""
    parameter.weight_loader(parameter, value, *part)


class SGLangStack(nn.Module):
    """See :class:`omni.engines.torch.Stack`; ``attend`` is SGLang's forward batch."""

    def __init__(self, dims: StackDims, *, device: torch.device, dtype: torch.dtype, quant: Any = None) -> None:
        super().__init__()
        self._dims, self._device, self._dtype = dims, device, dtype
        table = dims.rope(device).table
        with defaults(device, dtype):
            rope = adapter.rotary(table, interleaved=dims.rope_interleaved, dtype=dtype)
            self.layers = nn.ModuleList(SGLangLayer(dims.block, i, rope, quant) for i in range(dims.layers))
            self.last_norm = adapter.RMSNorm(dims.block.dim, eps=dims.block.eps)

    @property
    def norm(self) -> Tensor:
        gain: Tensor = self.last_norm.weight.data
        return gain

    def forward(self, x: Tensor, positions: Tensor, attend: Any) -> Tensor:
        residual: Tensor | None = None
        for layer in self.layers:
            x, residual = layer(x, residual, positions, attend)
        hidden: Tensor = self.last_norm(x, residual)[0]
        return hidden

    def fill(self, read: Callable[[int, DecoderLayer], None]) -> None:
        for index, layer in enumerate(self.layers):
            whole = DecoderLayer(self._dims.block, device=self._device, dtype=self._dtype)
            read(index, whole)
            assert isinstance(layer, SGLangLayer)
            layer.take(whole)
