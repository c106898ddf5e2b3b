"""One request on its way to the model in SGLang's scheduler, and how SGLang names its positions.

SGLang shares the KV cache of prefixes whose ids are equal. A position of ours is more than a token, so the ids that it
gets are digests of all that the position depends on: token, codes, salt and embeddings of the prompt, keyed with a
secret of the engine. (SGLang's extra key could hold the salt, but would keep apart what prompts share before it.) The
last position of a prompt gets an id that never comes again: what is generated after
it, which SGLang keeps under ids that say nothing of its codes, can only be found by the same request after a
retraction. SGLang computes the last position of a prompt anew in any case, so nothing is lost.
"""

from __future__ import annotations

import base64
import hashlib
from typing import Any

import msgspec
import numpy as np

from omni.engines.base import Prompt, SamplingParams
from omni.engines.inputs import content_salt, host_array

_UNIQUE = 1 << 62
"""Ids from here on are unique ones; below are digests."""


class Embedding(msgspec.Struct, array_like=True, frozen=True):
    """An array of ``Prompt.embeds``. ``dtype`` is the name of one of torch's types."""

    dtype: str
    shape: list[int]
    data: bytes


class RequestData(msgspec.Struct, array_like=True, frozen=True):
    """``columns``: the prompt as int64 ``(T, 1 + codebooks)``, token and codes of each position."""

    columns: bytes
    params: SamplingParams
    seed: int
    salt: bytes
    embeds: dict[str, Embedding]


def encode(prompt: Prompt, columns: np.ndarray, params: SamplingParams, seed: int) -> str:
    """As text, which is what SGLang's parameters of a request may hold."""
    data = RequestData(columns.tobytes(), params, seed, prompt.salt, _embeddings(prompt))
    return base64.b64encode(msgspec.msgpack.encode(data)).decode("ascii")


def decode(text: str) -> RequestData:
    return msgspec.msgpack.decode(base64.b64decode(text), type=RequestData)


def _embeddings(prompt: Prompt) -> dict[str, Embedding]:
    found = {}
    for name, value in prompt.embeds.items():
        array = host_array(value)
        dtype = str(value.dtype).removeprefix("torch.") if hasattr(value, "detach") else array.dtype.name
        found[name] = Embedding(dtype, list(array.shape), array.tobytes())
    return found


def tensors(data: RequestData) -> dict[str, Any]:
    """The arrays of ``Prompt.embeds`` as torch tensors on the host."""
    import torch

    return {
        name: torch.frombuffer(bytearray(part.data), dtype=getattr(torch, part.dtype)).view(part.shape)
        for name, part in data.embeds.items()
    }


def prefix_ids(prompt: Prompt, columns: np.ndarray, key: bytes, unique: int) -> np.ndarray:
    """SGLang's ids of a prompt, int64 ``(T,)``; ``unique`` counts the requests of an engine."""
    plain = hashlib.blake2b(key=key, digest_size=8)
    salted = hashlib.blake2b(content_salt(prompt), key=key, digest_size=8)
    ids = np.empty(len(columns), np.int64)
    for index, column in enumerate(columns[:-1]):
        digest = (plain if index < prompt.plain else salted).copy()
        digest.update(column.data)
        ids[index] = int.from_bytes(digest.digest(), "little") & (_UNIQUE - 1)
    ids[-1] = _UNIQUE + unique
    return ids
