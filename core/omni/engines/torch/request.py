"""One request on the host: its columns, its pages, where it stands."""

from __future__ import annotations

import enum
import hashlib
import itertools
import secrets
from typing import Any

import msgspec
import numpy as np

from omni.engines.base import Prompt, SamplingParams, Sink
from omni.engines.torch.radix import Key, PageKeys
from omni.errors import BadRequest


class Phase(enum.Enum):
    WAITING = "waiting"
    PREFILL = "prefill"
    DECODE = "decode"
    DONE = "done"


_order = itertools.count()


def _array(value: Any, name: str, dims: int) -> np.ndarray:
    """Any integer array (numpy, torch, list) as int64 on the host."""
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    array = np.asarray(value)
    if array.dtype.kind not in "iu" or array.ndim != dims:
        raise BadRequest(f"{name} must be an integer array of {dims} dimensions", param=name)
    return array.astype(np.int64)


def _salt(prompt: Prompt) -> bytes:
    """A digest of the prompt's salt and of the content of its extra embeddings, under their names."""
    digest = hashlib.blake2b(prompt.salt, digest_size=32)
    for name in sorted(prompt.embeds):
        value = prompt.embeds[name]
        if hasattr(value, "detach"):
            import torch

            value = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        array = np.ascontiguousarray(value)
        digest.update(msgspec.msgpack.encode((name, array.dtype.str, prompt.embeds[name].shape)))
        digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.digest()


class Request:
    """What the engine knows of a request; also its handle.

    ``columns`` int64 ``(T, 1 + codebooks)``: prompt, then generated. Of ``length`` columns the first ``computed``
    have their keys and values in ``pages``; the last column is always the input of a decode step.
    """

    def __init__(
        self,
        request_id: str,
        prompt: Prompt,
        params: SamplingParams,
        sink: Sink,
        *,
        codebooks: int,
        page_size: int,
    ) -> None:
        tokens = _array(prompt.tokens, "prompt", 1)
        if not len(tokens):
            raise BadRequest("the prompt is empty", param="prompt")
        self.columns = np.zeros((len(tokens) + 64, 1 + codebooks), np.int64)
        self.columns[: len(tokens), 0] = tokens
        if codebooks:
            if prompt.codes is not None:
                codes = _array(prompt.codes, "codes", 2)
                if codes.shape != (codebooks, len(tokens)):
                    raise BadRequest(
                        f"codes must have shape ({codebooks}, {len(tokens)}), not {codes.shape}", param="codes"
                    )
                self.columns[: len(tokens), 1:] = codes.T
        elif prompt.codes is not None:
            raise BadRequest("this model takes no codes", param="codes")
        self.request_id = request_id
        self.order = next(_order)
        self.prompt, self.params, self.sink = prompt, params, sink
        self.seed = secrets.randbits(63) if params.seed is None else _int64(params.seed)
        self.prompt_length = self.length = len(tokens)
        self.phase = Phase.WAITING
        self.row = -1
        self.pages: list[int] = []
        self.held: list[int] = []
        self.computed = 0
        self.cached_tokens = -1
        self.has_room = True
        self.alone = False
        self.aborted = False
        self._keys = PageKeys(page_size, _salt(prompt))

    @property
    def generated(self) -> int:
        return self.length - self.prompt_length

    def keys(self, positions: int) -> list[Key]:
        return list(self._keys.upto(self.columns, positions))

    def append(self, column: np.ndarray) -> None:
        if self.length == len(self.columns):
            more = np.zeros_like(self.columns[: max(64, self.length // 2)])
            self.columns = np.concatenate((self.columns, more))
        self.columns[self.length] = column
        self.length += 1


def _int64(seed: int) -> int:
    """Any integer folded into the range of int64."""
    folded = seed & ((1 << 64) - 1)
    return folded - (1 << 64) if folded >= 1 << 63 else folded
