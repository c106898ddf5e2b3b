"""What all requests together hold: bodies on their way, forms, references."""

from __future__ import annotations

import base64
import json
import select
import socket
import threading
import time
from collections.abc import Callable

import httpx
import pytest
import server_toys
from server_harness import Raw, Running, error, eventually

import omni
from omni.errors import Busy, TooLarge
from omni.server.body import Budget
from omni.server.settings import MIB

SPEECH, HEAR = "/v1/audio/speech", "/v1/audio/transcriptions"
FILE = b'--X\r\nContent-Disposition: form-data; name="file"\r\n\r\n'
FIELD = b'--X\r\nContent-Disposition: form-data; name="prompt"\r\n\r\n'


def free(running: Running) -> tuple[int, int]:
    """Bytes of memory and of disk that nobody holds."""
    runtime = running.app.state.runtime
    return runtime.memory._free, runtime.spool._free


def half_sent(running: Running, path: str, kind: str, body: bytes) -> Raw:
    client = Raw(running.port)
    client.head(path, f"content-type: {kind}", f"content-length: {2 * len(body)}")
    client.send(body)
    return client


HALVES = {
    "file": (HEAR, "multipart/form-data; boundary=X", FILE + bytes(900_000)),
    "fields": (HEAR, "multipart/form-data; boundary=X", (FIELD + b"x" * 60_000 + b"\r\n") * 4),
    "JSON": (SPEECH, "application/json", b'{"input": "' + b"x" * 900_000),
}


@pytest.mark.parametrize("kind", HALVES)
def test_what_has_arrived_of_a_body_counts(start: Callable[..., Running], kind):
    running = start(max_body_memory_mb=2)
    path, content_type, body = HALVES[kind]
    waiting = [half_sent(running, path, content_type, body) for _ in range(2)]
    assert eventually(lambda: free(running)[0] < 400_000, 5)
    refused = half_sent(running, path, content_type, body)
    assert refused.sock.recv(4096).startswith(b"HTTP/1.1 429 ")
    assert httpx.post(running.url + SPEECH, json={"input": "hi", "response_format": "pcm"}).status_code == 200
    for client in waiting:
        client.sock.close()
    assert eventually(lambda: free(running)[0] == 2 * MIB)


def websocket(running: Running, size: int) -> Raw:
    """One that expects a binary message of ``size`` bytes, masked with zeros."""
    client = Raw(running.port)
    client.websocket("/v1/toy/live")
    client.send(b"\x82\xff" + size.to_bytes(8, "big") + bytes(4))
    return client


def test_what_has_arrived_of_a_websockets_message_counts(start: Callable[..., Running]):
    pytest.importorskip("wsproto")
    running = start(max_body_memory_mb=2)
    one, two, three = (websocket(running, 1_000_000) for _ in range(3))
    for client in (one, two):
        client.send(bytes(900_000))
    assert eventually(lambda: free(running)[0] < 400_000, 5)
    three.send(bytes(900_000))
    closing = three.sock.recv(4096)
    assert (closing[0], int.from_bytes(closing[2:4], "big")) == (0x88, 1013)
    assert b"too many large requests" in closing
    one.send(bytes(100_000))
    assert one.sock.recv(4096).startswith(b"\x81\x071000000")
    two.sock.close()
    assert eventually(lambda: free(running)[0] == 2 * MIB)


def test_all_of_a_form_but_its_file_is_bounded(served):
    client = half_sent(served, HEAR, "multipart/form-data; boundary=X", (FIELD + b"x" * 60_000 + b"\r\n") * 6)
    answer = client.sock.recv(4096)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"320 KiB" in answer


def test_a_file_counts_where_it_is(start):
    running = start()
    memory, disk = free(running)
    server_toys.GATE.clear()
    try:
        for size, in_memory in ((500_000, True), (3_000_000, False)):
            files = {"file": b"BLOCKED" + bytes(size - 7)}
            thread = threading.Thread(target=httpx.post, args=(running.url + HEAR,), kwargs={"files": files})
            thread.start()
            assert eventually(lambda: running.metric("omni_stage_running", stage="hear") == 1, 5)
            held_memory, held_disk = (before - now for before, now in zip((memory, disk), free(running), strict=True))
            assert held_disk == (0 if in_memory else size)
            assert held_memory == 0 if not in_memory else size < held_memory < size + 4096
            server_toys.GATE.set()
            thread.join(10)
            assert eventually(lambda: free(running) == (memory, disk))
            server_toys.GATE.clear()
    finally:
        server_toys.GATE.set()


def test_references_count_and_nothing_else_of_a_request_that_is_answered(start):
    running = start()
    before, _ = free(running)
    body = {
        "model": "stereo",
        "input": "FOREVER",
        "response_format": "pcm",
        "references": [{"audio": base64.b64encode(bytes(300_000)).decode()}] * 2,
    }
    with httpx.stream("POST", running.url + SPEECH, json=body) as answer:
        chunks = answer.iter_raw()
        assert next(chunks)
        assert before - free(running)[0] == 600_000
    assert eventually(lambda: free(running)[0] == before)


def test_references_need_room(start):
    running = start(max_body_memory_mb=2)
    body = {"model": "stereo", "input": "hi", "references": [{"audio": base64.b64encode(bytes(900_000)).decode()}]}
    refused = httpx.post(running.url + SPEECH, json=body)
    assert refused.status_code == 413
    assert "alone needs more than the 2 MiB" in error(refused)["message"]


def test_a_text_is_counted_as_wide_as_it_becomes(start):
    """One character beyond U+FFFF, in UTF-8 or as an escape, makes a string four times as large."""
    running = start(max_body_memory_mb=2)
    for ascii_ in (False, True):
        text = json.dumps({"input": "x" * 500_000 + "😀"}, ensure_ascii=ascii_)
        assert httpx.post(running.url + SPEECH, content=text.encode()).status_code == 413
    plain = httpx.post(running.url + SPEECH, json={"input": "x" * 500_000})
    assert (plain.status_code, error(plain)["code"]) == (400, "string_above_max_length")


def test_nothing_is_fetched_for_a_request_that_has_no_place(start):
    running = start(
        recipes=[server_toys.STEREO.model_copy(update={"limits": omni.Limits(max_requests=1)})], allow_private_urls=True
    )
    with socket.create_server(("127.0.0.1", 0)) as web:
        url = f"http://127.0.0.1:{web.getsockname()[1]}/voice.wav"
        with httpx.stream("POST", running.url + SPEECH, json={"input": "FOREVER", "response_format": "pcm"}) as first:
            chunks = first.iter_raw()
            assert next(chunks)
            refused = httpx.post(running.url + SPEECH, json={"input": "hi", "references": [{"audio": url}]})
        assert refused.status_code == 429
        assert select.select([web], [], [], 0)[0] == []


def test_a_byte_now_and_then_holds_nothing_for_long(start):
    """However much came before."""
    running = start(body_seconds=0.3)
    client = half_sent(running, SPEECH, "application/json", b'{"input": "' + b"x" * 200_000)
    sent = 0
    while not select.select([client.sock], [], [], 0.02)[0]:
        client.send(b"x")
        sent += 1
        assert sent < 300
    assert client.sock.recv(4096).startswith(b"HTTP/1.1 408 ")
    assert sent > 3


def test_a_body_that_comes_as_it_is_spoken_may_take_its_time(start):
    running = start(body_seconds=0.3)
    client = Raw(running.port)
    client.head(HEAR, "content-type: multipart/form-data; boundary=X", "transfer-encoding: chunked")
    began = time.monotonic()
    pieces = 0
    client.send(b"%x\r\n%s\r\n" % (len(FILE), FILE))
    while time.monotonic() - began < 0.9:
        client.send(b"320\r\n" + bytes(800) + b"\r\n")
        pieces += 1
        assert not select.select([client.sock], [], [], 0.05)[0]
    client.send(b"9\r\n\r\n--X--\r\n\r\n0\r\n\r\n")
    answer = client.sock.recv(4096)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert f'bytes\\": {800 * pieces}'.encode() in answer


def test_shares():
    budget = Budget(1)
    with budget.share() as one, budget.share() as two:
        one.take(900_000)
        two.take(60_000)
        two.take(5_000)
        with pytest.raises(Busy):
            two.take(100_000)
        with pytest.raises(TooLarge):
            one.take(200_000)
        one.settle(100_000)
        two.take(800_000)
        assert budget._free == MIB - 100_000 - 865_000
    assert budget._free == MIB
