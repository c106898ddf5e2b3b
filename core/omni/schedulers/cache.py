"""Results kept by content: a bounded least-recently-used cache whose keys core makes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from hashlib import blake2b
from typing import Any, NamedTuple

from omni.messages import Message, decode, encode
from omni.stages import Stage

_OVERHEAD = 200
"""Bytes that an entry takes beside its content, roughly."""


def content_salt(stage: Stage[Message, Message]) -> bytes:
    """What every key of a stage shares: recipe, stage class, options and the revision of the weights."""
    context = stage.context
    parts = (
        context.recipe.name,
        context.stage,
        f"{type(stage).__module__}:{type(stage).__qualname__}",
        stage.options.model_dump_json(),
        context.revision,
    )
    return "\0".join(parts).encode()


def content_key(salt: bytes, message: Message) -> bytes:
    """Digest (32 bytes) of a message's whole content: header and every array, lengths included."""
    header, buffers = encode(message)
    digest = blake2b(digest_size=32)
    digest.update(len(salt).to_bytes(8, "little") + salt)
    digest.update(f"{type(message).__module__}:{type(message).__qualname__}\0".encode())
    digest.update(len(header).to_bytes(8, "little") + header)
    for buffer in buffers:
        digest.update(buffer.nbytes.to_bytes(8, "little"))
        digest.update(buffer)
    return digest.digest()


class Frozen(NamedTuple):
    """A message as bytes, from which any number of equal ones are made."""

    cls: type[Message]
    header: bytes
    buffers: list[Any]

    @classmethod
    def of(cls, message: Message) -> Frozen:
        header, views = encode(message)
        return cls(type(message), header, [bytes(view) for view in views])

    def thaw(self) -> Message:
        """A new object; its numpy arrays are read-only."""
        return decode(self.cls, self.header, self.buffers)

    @property
    def nbytes(self) -> int:
        return len(self.header) + sum(len(buffer) for buffer in self.buffers) + _OVERHEAD


class ResultCache:
    """Frozen results up to ``max_bytes``, for any thread. Every hit is thawed anew, so no two requests share an
    object."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: OrderedDict[bytes, Frozen] = OrderedDict()
        self._lock = threading.Lock()
        self.bytes = 0

    def get(self, key: bytes) -> Message | None:
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            self._entries.move_to_end(key)
        return entry.thaw()

    def put(self, key: bytes, entry: Frozen) -> None:
        """Keep an entry, unless it alone is over the limit; the entries used longest ago make way."""
        if entry.nbytes > self._max_bytes:
            return
        with self._lock:
            old = self._entries.pop(key, None)
            self._entries[key] = entry
            self.bytes += entry.nbytes - (old.nbytes if old is not None else 0)
            while self.bytes > self._max_bytes:
                _, dropped = self._entries.popitem(last=False)
                self.bytes -= dropped.nbytes
