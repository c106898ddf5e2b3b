"""The transport that encodes and decodes in place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from harness import Item

from omni import AudioChunk, BadRequest, Message, StageFailed
from omni.transports.codec import CodecTransport
from omni.transports.inproc import Edge


class Box(Message):
    content: Any


def test_items_arrive_as_equal_copies() -> None:
    edge = Edge(4)
    outlet = CodecTransport().connect(AudioChunk, edge)
    sent = AudioChunk(samples=np.arange(5, dtype=np.float32), sample_rate=8000)
    outlet.put(sent)
    outlet.end(1)
    got = edge.take()
    assert got is not sent
    assert isinstance(got, AudioChunk)
    assert got.samples.dtype == np.float32
    assert got.samples.tolist() == sent.samples.tolist()
    assert not np.shares_memory(got.samples, sent.samples)
    assert edge.drained
    assert edge.error is None


@pytest.mark.parametrize(
    "content", [object(), 2**80, np.array([object()]), lambda: None], ids=["object", "huge", "objects", "function"]
)
def test_what_cannot_cross_fails_the_stream_in_words(content: Any) -> None:
    edge = Edge(4)
    CodecTransport().connect(Box, edge).put(Box(content=content))
    assert isinstance(edge.error, StageFailed)
    assert "Box does not cross a process boundary" in edge.error.message


def test_an_item_of_another_type_fails() -> None:
    edge = Edge(4)
    CodecTransport().connect(AudioChunk, edge).put(Item(value=1))
    assert isinstance(edge.error, StageFailed)


def test_errors_cross_as_what_they_are() -> None:
    edge = Edge(4)
    CodecTransport().connect(Item, edge).fail(BadRequest("too long", param="input", code="string_too_long"))
    error = edge.error
    assert type(error) is BadRequest
    assert (error.status, error.message, error.param, error.code) == (400, "too long", "input", "string_too_long")


def test_room_is_the_receivers() -> None:
    edge = Edge(2)
    outlet = CodecTransport().connect(Item, edge)
    assert outlet.room == 2
    outlet.put(Item())
    assert outlet.room == 1
