"""What a body may become in memory: counted before anything of it is made."""

from __future__ import annotations

import contextlib
import json
import time

import httpx
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from server_harness import error

from omni.errors import BadRequest
from omni.server import objects
from omni.server.errors import shown
from omni.server.objects import MAX_DEPTH, MAX_ENTRIES, decode_msgpack, decode_object

TEXT = st.text(alphabet='ab ,:"\\[]{}é😀\n', max_size=12)
NUMBERS = st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
LEAVES = st.none() | st.booleans() | NUMBERS | TEXT
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4), max_leaves=20
)
BODIES = st.dictionaries(TEXT, VALUES, max_size=4)


def entries(value: object) -> int:
    if isinstance(value, dict):
        return len(value) + sum(map(entries, value.values()))
    return len(value) + sum(map(entries, value)) if isinstance(value, list) else 0


def depth(value: object) -> int:
    if isinstance(value, dict):
        value = list(value.values())
    return 1 + max(map(depth, value), default=0) if isinstance(value, list) else 0


def limited(entries: int, depth: int, window: int = 3):
    """The same limits for JSON and msgpack, as tight as a test wants them."""
    patch = pytest.MonkeyPatch()
    patch.setattr(objects, "MAX_ENTRIES", entries)
    patch.setattr(objects, "MAX_DEPTH", depth)
    patch.setattr(objects, "_WINDOW", window)
    return patch


@given(value=BODIES, window=st.integers(2, 9), ascii_=st.booleans(), indent=st.sampled_from([None, 1]))
def test_what_json_holds_is_counted_exactly(value, window, ascii_, indent):
    body = json.dumps(value, ensure_ascii=ascii_, indent=indent).encode()
    most, deepest = entries(value), depth(value)
    patch = limited(most, deepest, window)
    try:
        assert decode_object(body) == json.loads(body)
        if most:
            objects.MAX_ENTRIES = most - 1
            with pytest.raises(BadRequest, match="values together"):
                decode_object(body)
            objects.MAX_ENTRIES, objects.MAX_DEPTH = most, deepest - 1
            with pytest.raises(BadRequest, match="levels deep"):
                decode_object(body)
    finally:
        patch.undo()


@given(value=BODIES | st.dictionaries(TEXT, st.binary(max_size=300) | st.lists(LEAVES, min_size=16, max_size=20)))
def test_what_msgpack_holds_is_counted_exactly(value):
    body = msgspec.msgpack.encode(value)
    patch = limited(entries(value), depth(value))
    try:
        assert decode_msgpack(body) == value
        if value:
            objects.MAX_ENTRIES = entries(value) - 1
            with pytest.raises(BadRequest, match="values together"):
                decode_msgpack(body)
            objects.MAX_ENTRIES, objects.MAX_DEPTH = entries(value), depth(value) - 1
            with pytest.raises(BadRequest, match="levels deep"):
                decode_msgpack(body)
    finally:
        patch.undo()


@pytest.mark.parametrize(
    "body",
    [
        *(b"\x81\xa1a\xc7\x02\x01ab", b"\x81\xa1a\xd6\xffabcd", b"\x81\xa1a\xde\x00\x01\xa1b\xdc\x00\x02\x01\xc0"),
        *(b"\x81\xa1a\xca\x00\x00\x00\x00", b"\x81\xa1a\xd3" + bytes(8), b"\x81\xd9\x01a\xc5\x00\x01x"),
    ],
)
def test_every_head_of_msgpack_is_stepped_over(body):
    patch = limited(4, 3)
    try:
        assert set(decode_msgpack(body)) == {"a"}
    finally:
        patch.undo()


@given(body=st.binary(max_size=60) | BODIES.map(msgspec.msgpack.encode).map(lambda body: body[:-1]))
def test_msgpack_that_is_none_never_ends_in_another_error(body):
    with contextlib.suppress(BadRequest):
        assert isinstance(decode_msgpack(body), dict)


@pytest.mark.parametrize(
    "body",
    [
        b'{"input": [' + b"{}," * 10_000 + b"{}]}",
        b'{"input": [' + b"[0]," * 5_000 + b"{}]}",
        b'{"input": ' + b"[" * 900 + b"]" * 900 + b"}",
        b"{" + b",".join(b'"k%d":0' % i for i in range(MAX_ENTRIES + 1)) + b"}",
    ],
    ids=["objects", "lists", "levels", "names"],
)
def test_more_than_the_limits_is_refused_before_it_is_made(http, monkeypatch, body):
    monkeypatch.setattr(msgspec.json, "decode", lambda *_: pytest.fail("decoded"))
    answer = http.post("/v1/audio/speech", content=body)
    assert answer.status_code == 400
    assert str(MAX_ENTRIES) in error(answer)["message"] or str(MAX_DEPTH) in error(answer)["message"]


def test_signs_in_a_text_are_no_values(http):
    text = "one [{, " * 200
    assert http.post("/v1/audio/speech", json={"input": text, "response_format": "pcm"}).status_code == 200


@pytest.mark.parametrize(
    "body", [b'{"a":' + b'""' * 40_000 + b",,,,", b"[" * 3 + b"]" * 4 + b",,,", b'{"a":",,,,\\', b'{"a":",,,,']
)
def test_what_is_no_json_is_said_to_be_none(body):
    patch = limited(entries=3, depth=4)
    try:
        with pytest.raises(BadRequest, match="not valid JSON"):
            decode_object(body)
    finally:
        patch.undo()


@pytest.mark.parametrize(
    "value", [[{}] * 9_000, {"a": [[[[1] * 4_000]]]}, {"x" * 60: "y" * 100_000}, [["z" * 200_000]]]
)
def test_a_refused_value_is_shown_in_short(http: httpx.Client, value):
    began = time.perf_counter()
    answer = http.post("/v1/audio/speech", json={"input": value})
    assert (answer.status_code, error(answer)["param"]) == (400, "input")
    assert len(answer.content) < 400
    assert time.perf_counter() - began < 5


def test_only_what_is_shown_of_a_value_is_written_out():
    written = []

    class Inner:
        def __repr__(self) -> str:
            written.append(self)
            return "inner"

    for value in ([Inner()] * 1000, {i: Inner() for i in range(1000)}, [[[[Inner()]]]] * 9):
        written.clear()
        assert len(shown(value)) < 70
        assert len(written) < 10
