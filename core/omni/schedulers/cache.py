"""Results kept by content: a bounded least-recently-used cache whose keys core makes."""

from __future__ import annotations

from collections import OrderedDict
from hashlib import blake2b

from omni.messages import Message, decode, encode
from omni.stages import Stage


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


class ResultCache:
    """Encoded results up to ``max_bytes``. Every hit is decoded anew, so no two requests share an object."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: OrderedDict[bytes, tuple[type[Message], bytes, list[bytes]]] = OrderedDict()
        self.bytes = 0

    def get(self, key: bytes) -> Message | None:
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        cls, header, buffers = entry
        return decode(cls, header, list(buffers))

    def put(self, key: bytes, result: Message) -> None:
        header, views = encode(result)
        buffers = [bytes(view) for view in views]
        size = self._size(header, buffers)
        if size > self._max_bytes or key in self._entries:
            return
        self._entries[key] = (type(result), header, buffers)
        self.bytes += size
        while self.bytes > self._max_bytes:
            _, (_, old_header, old_buffers) = self._entries.popitem(last=False)
            self.bytes -= self._size(old_header, old_buffers)

    @staticmethod
    def _size(header: bytes, buffers: list[bytes]) -> int:
        return len(header) + sum(len(buffer) for buffer in buffers) + 200
