"""Objects out of JSON and msgpack, with bounds on what a small body may become in memory.

Three bytes of JSON, or one of msgpack, make an object of 64: what a body holds is counted before it is decoded.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import re
import struct
import sys
from typing import Any

import msgspec
from starlette.types import Receive, Scope

from omni.errors import BadRequest
from omni.server.body import Intake, Share, read_body
from omni.server.settings import MIB

MAX_ENTRIES = 10_000
"""Values that the lists and objects of one body may hold, all levels together."""
MAX_DEPTH = 32
"""Lists and objects inside of each other."""

_EXPLAINED = MIB
"""Bytes of a wrong body that are read a second time, for a better message."""
_ON_LOOP = MIB // 4
"""Bytes that may be decoded on the event loop."""
_WINDOW = MIB
"""Bytes of one match: an expression holds the interpreter until it has matched."""
_BETWEEN = re.compile(rb'[^",\[\]{}]*+')
_STRING = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
_EMPTY = re.compile(rb"[\[{]\s{0,64}+[\]}]")
_SIZES = (">B", ">H", ">I")
_SIZED = {
    # Heads of msgpack with a size behind them: its format, and bytes beside the content.
    **{0xC4 + i: (kind, 0) for i, kind in enumerate(_SIZES)},
    **{0xC7 + i: (kind, 1) for i, kind in enumerate(_SIZES)},
    **{0xD9 + i: (kind, 0) for i, kind in enumerate(_SIZES)},
    **{0xDC + i: (kind, 0) for i, kind in enumerate((">H", ">I", ">H", ">I"))},
}
_FIXED = {
    **dict(zip(range(0xCA, 0xD4), (4, 8, 1, 2, 4, 8, 1, 2, 4, 8), strict=True)),
    **dict(zip(range(0xD4, 0xD9), (2, 3, 5, 9, 17), strict=True)),
}
"""Bytes that follow msgpack's heads of numbers and extensions."""


async def read_object(
    scope: Scope, receive: Receive, limit: int, intake: Intake, share: Share, what: str = "a JSON body"
) -> dict[str, Any]:
    """The body of a request, a JSON object; ``share`` then holds what its values take.

    Raises:
        BadRequest: see :func:`decode_object`.
        TooLarge, Busy, Unavailable, BodyTimeout, Cancelled: see :func:`omni.server.body.read_body`.
    """
    raw = await read_body(scope, receive, limit, intake, share, what)
    # One character beyond U+FFFF makes all of its string four bytes wide.
    share.take(len(raw) if raw.isascii() and b"\\u" not in raw else 4 * len(raw))
    value = decode_object(raw) if len(raw) < _ON_LOOP else await asyncio.to_thread(decode_object, raw)
    del raw
    share.settle(size_of(value))
    return value


def size_of(value: Any) -> int:
    """Bytes that a decoded value takes."""
    size = sys.getsizeof(value)
    if isinstance(value, dict):
        return size + sum(size_of(name) + size_of(inner) for name, inner in value.items())
    return size + sum(map(size_of, value)) if isinstance(value, list) else size


def decode_object(body: bytes | bytearray) -> dict[str, Any]:
    """A JSON object, strictly: NaN, infinity and numbers that no float can hold are refused.

    Raises:
        BadRequest: anything else, no valid JSON, more than ``MAX_ENTRIES`` values or ``MAX_DEPTH`` levels. It names the
            field of a number that JSON does not have.
    """
    _check_json(body)
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        name = _field_without_number(body)
        if name is not None:
            raise BadRequest(f"{name!r} must be a finite number", param=name) from None
        raise BadRequest(f"the body is not valid JSON: {error}", code="invalid_json") from None
    if not isinstance(value, dict):
        raise BadRequest("the body must be a JSON object", code="invalid_json")
    return value


def decode_msgpack(body: bytes | bytearray) -> dict[str, Any]:
    """A msgpack map whose keys are names.

    Raises:
        BadRequest: anything else, no valid msgpack, more than ``MAX_ENTRIES`` values or ``MAX_DEPTH`` levels.
    """
    try:
        with contextlib.suppress(struct.error, IndexError):  # it ends early, which the decoder will say
            _check_msgpack(body)
        value = msgspec.msgpack.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"the body is not valid msgpack: {error}", code="invalid_msgpack") from None
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        raise BadRequest("the body must be a msgpack map with names of fields as keys", code="invalid_msgpack")
    return value


def _check_json(body: bytes | bytearray) -> None:
    """Raises BadRequest when too much is in the body. Returns early at what is no JSON: no decoder gets beyond it."""
    openings = body.count(b"[") + body.count(b"{")
    if openings <= MAX_DEPTH and openings + body.count(b",") <= MAX_ENTRIES:
        return
    # Perhaps it is only text that holds these signs.
    place = entries = depth = strings = 0
    while place < len(body):
        match = _BETWEEN.match(body, place, place + _WINDOW)
        assert match is not None
        place = match.end()
        sign = body[place : place + 1]
        if sign == b'"':
            place = _end_of_string(body, place + 1)
            strings += 1
        elif sign in (b",", b"[", b"{"):
            entries += sign == b"," or _EMPTY.match(body, place) is None
            depth += sign != b","
            _check(entries, depth, "JSON")
            place += 1
        elif sign in (b"]", b"}"):
            depth -= 1
            place += 1
        if depth < 0 or strings > 2 * entries + 1:
            return


def _end_of_string(body: bytes | bytearray, place: int) -> int:
    """Where what follows the string begins, of which ``place`` is the first character."""
    while place < len(body):
        match = _STRING.match(body, place, place + _WINDOW)
        assert match is not None
        stop = match.end()
        if body[stop : stop + 1] == b'"':
            return stop + 1
        if stop == place:  # a backslash, and nothing after it
            break
        place = stop
    return len(body)


def _check_msgpack(body: bytes | bytearray) -> None:
    """Raises BadRequest when too much is in the body, struct.error or IndexError when it ends early."""
    place = entries = 0
    open_: list[int] = [1]
    while open_:
        if not open_[-1]:
            open_.pop()
            continue
        open_[-1] -= 1
        head = body[place]
        place += 1
        children, keyed = None, False
        if 0x80 <= head < 0xA0:
            children, keyed = head & 0xF, head < 0x90
        elif 0xA0 <= head < 0xC0:
            place += head & 0x1F
        elif head in _SIZED:
            kind, extra = _SIZED[head]
            (size,) = struct.unpack_from(kind, body, place)
            place += struct.calcsize(kind)
            if head < 0xDC:
                place += size + extra
            else:
                children, keyed = size, head > 0xDD
        else:
            place += _FIXED.get(head, 0)
        if children is not None:
            entries += children
            open_.append(children << keyed)
            _check(entries, len(open_) - 1, "msgpack")


def _check(entries: int, depth: int, what: str) -> None:
    if entries > MAX_ENTRIES:
        raise BadRequest(f"the lists and objects of a {what} body may hold at most {MAX_ENTRIES} values together")
    if depth > MAX_DEPTH:
        raise BadRequest(f"the lists and objects of a {what} body may be at most {MAX_DEPTH} levels deep")


def _field_without_number(body: bytes | bytearray) -> str | None:
    """The first field whose value is NaN or infinite. Python's own decoder takes what many clients write for these."""
    if len(body) > _EXPLAINED:
        return None
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(fields, dict):
        return None
    numbers = ((name, value) for name, value in fields.items() if isinstance(value, float))
    return next((name[:100] for name, value in numbers if not math.isfinite(value)), None)
