"""Chunks that come fast leave together; the first leaves alone, and nothing waits for what will not come."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Callable

import pytest
import server_toys
from server_harness import toy_plugins

from omni import SpeechRequest
from omni.config import configure
from omni.errors import Cancelled, StageFailed
from omni.pipeline import EDGE_CAPACITY, Pipeline
from omni.request_stream import RequestStream


def chunks_of(data: bytes) -> list[bytes]:
    """The chunks of a chunked body; it must be complete."""
    chunks = []
    while True:
        size, _, data = data.partition(b"\r\n")
        length = int(size, 16)
        if not length:
            assert data == b"\r\n"
            return chunks
        chunks.append(data[:length])
        assert data[length : length + 2] == b"\r\n"
        data = data[length + 2 :]


def test_a_burst_leaves_in_few_writes(served):
    words = 60
    body = json.dumps({"input": "word " * words, "response_format": "pcm"}).encode()
    with socket.create_connection(("127.0.0.1", served.port), timeout=20) as sock:
        head = f"POST /v1/audio/speech HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
        sock.sendall(head.encode() + body)
        answer = b""
        while block := sock.recv(65536):
            answer += block
    chunks = chunks_of(answer.partition(b"\r\n\r\n")[2])
    assert sum(map(len, chunks)) == words * 4800
    assert len(chunks) < words * 2 // 3


def gathered(
    text: str, later: Callable[[RequestStream], None] | None = None
) -> tuple[float, int, type[BaseException] | None]:
    """After the first chunk: how long half a minute of gathering took, what was there then, how it went on."""

    async def main() -> tuple[float, int, type[BaseException] | None]:
        pipeline = await Pipeline.load(configure([server_toys.TONE])[0], toy_plugins())
        try:
            async with pipeline.submit(SpeechRequest(text=text)) as stream:
                await anext(stream)
                start = time.monotonic()
                if later is not None:
                    asyncio.get_running_loop().call_later(0.02, later, stream)
                await stream.gather(30)
                seconds = time.monotonic() - start
                count = 0
                while stream.poll() is not None:
                    count += 1
                return seconds, count, await _next(stream) if text != "FOREVER" or later else None
        finally:
            await pipeline.close()

    return asyncio.run(main())


async def _next(stream: RequestStream) -> type[BaseException]:
    with pytest.raises((StopAsyncIteration, StageFailed, Cancelled)) as caught:
        await anext(stream)
    return caught.type


def test_gathering_ends_with_the_stream():
    seconds, count, end = gathered("one two three")
    assert seconds < 10
    assert (count, end) == (2, StopAsyncIteration)


def test_gathering_ends_when_no_more_fits():
    seconds, count, _ = gathered("FOREVER")
    assert seconds < 10
    assert count >= EDGE_CAPACITY


def test_gathering_ends_with_an_error_or_a_cancel():
    for later, kind in (
        (lambda stream: stream.fail(StageFailed("broken")), StageFailed),
        (RequestStream.cancel, Cancelled),
    ):
        seconds, _, end = gathered("FOREVER", later)
        assert seconds < 10
        assert end is kind


def test_gathering_ends_after_its_time():
    async def main() -> float:
        pipeline = await Pipeline.load(configure([server_toys.TONE])[0], toy_plugins())
        try:
            async with pipeline.submit(SpeechRequest(text="FOREVER")) as stream:
                await anext(stream)
                start = time.monotonic()
                await stream.gather(0.01)
                return time.monotonic() - start
        finally:
            await pipeline.close()

    assert asyncio.run(main()) >= 0.009
