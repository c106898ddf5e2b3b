"""What every engine does with a request first: check it, and bring it into one form."""

from __future__ import annotations

import hashlib
import math
import secrets
from typing import Any

import msgspec
import numpy as np

from omni.engines.base import Prompt, SamplingParams
from omni.errors import BadRequest


def _array(value: Any, name: str, dims: int) -> np.ndarray:
    """Any integer array (numpy, torch, list) as int64 on the host."""
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    array = np.asarray(value)
    if array.dtype.kind not in "iu" or array.ndim != dims:
        raise BadRequest(f"{name} must be an integer array of {dims} dimensions", param=name)
    return array.astype(np.int64)


def columns_of(prompt: Prompt, codebooks: int) -> np.ndarray:
    """Token and codes of every position, int64 ``(T, 1 + codebooks)``, codes 0 where the prompt has none.

    Raises:
        BadRequest: the prompt is empty, or an array has another shape.
    """
    tokens = _array(prompt.tokens, "prompt", 1)
    if not len(tokens):
        raise BadRequest("the prompt is empty", param="prompt")
    columns = np.zeros((len(tokens), 1 + codebooks), np.int64)
    columns[:, 0] = tokens
    if prompt.codes is None:
        return columns
    if not codebooks:
        raise BadRequest("this model takes no codes", param="codes")
    codes = _array(prompt.codes, "codes", 2)
    if codes.shape != (codebooks, len(tokens)):
        raise BadRequest(f"codes must have shape ({codebooks}, {len(tokens)}), not {codes.shape}", param="codes")
    columns[:, 1:] = codes.T
    return columns


def host_array(value: Any) -> np.ndarray:
    """A numpy or torch array, contiguous on the host; bfloat16, which numpy lacks, as its 16 bits."""
    if not hasattr(value, "detach"):
        return np.ascontiguousarray(value)
    import torch

    tensor = value.detach().cpu().contiguous()
    return np.asarray(tensor.view(torch.int16) if tensor.dtype is torch.bfloat16 else tensor)


def content_salt(prompt: Prompt) -> bytes:
    """A digest of the prompt's salt and of the content of its extra embeddings, under their names: all that tokens and
    codes do not show."""
    digest = hashlib.blake2b(prompt.salt, digest_size=32)
    for name in sorted(prompt.embeds):
        array = host_array(prompt.embeds[name])
        digest.update(msgspec.msgpack.encode((name, array.dtype.str, array.shape)))
        digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.digest()


def check_sampling(params: SamplingParams) -> None:
    """Raises :class:`BadRequest` for what is out of range in every model."""

    def require(ok: bool, param: str, limit: str) -> None:
        if not ok:
            raise BadRequest(f"{param} must be {limit}", param=param)

    require(params.max_new_tokens >= 1, "max_new_tokens", "at least 1")
    require(math.isfinite(params.temperature) and params.temperature >= 0, "temperature", "0 or more")
    require(0 < params.top_p <= 1, "top_p", "above 0 and at most 1")
    require(params.top_k >= 0, "top_k", "0 (off) or more")


def seed_of(params: SamplingParams) -> int:
    """The request's seed folded into the range of int64, or one drawn now."""
    if params.seed is None:
        return secrets.randbits(63)
    folded = params.seed & ((1 << 64) - 1)
    return folded - (1 << 64) if folded >= 1 << 63 else folded


def context_error(prompt: int, new: int, limit: int) -> BadRequest:
    """A prompt of so many positions and so many to be generated do not fit."""
    return BadRequest(
        f"prompt ({prompt}) and max_new_tokens ({new}) exceed the context of {limit} positions",
        param="prompt" if prompt >= limit else "max_new_tokens",
    )
