"""Clients that go away, that are slow, that are too many: the work stops, the slots come back, others go on."""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from collections.abc import Iterator

import httpx
import pytest
import server_toys
from server_harness import Running, error, eventually

import omni
from omni.audio import AudioOutput
from omni.server.settings import ServerSettings

SPEECH, HEAR = "/v1/audio/speech", "/v1/audio/transcriptions"


def connect(port: int, path: str, body: bytes, kind: str = "application/json") -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port), timeout=10)
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
    sock.sendall(head.encode() + body)
    return sock


def speak(running: Running, **fields) -> socket.socket:
    body = {"input": "FOREVER", "response_format": "pcm"} | fields
    return connect(running.port, SPEECH, json.dumps(body).encode())


def reset(sock: socket.socket) -> None:
    """Close with RST, as a client that is killed."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def busy(running: Running, model: str) -> float:
    names = ("omni_active", "omni_stage_streams", "omni_stage_queued", "omni_stage_running")
    return sum(running.metric(name, model=model) for name in names)


def cancelled(running: Running, model: str) -> float:
    return running.metric("omni_pipeline_requests_total", model=model, outcome="cancelled")


@pytest.mark.parametrize("leave", [socket.socket.close, reset, lambda s: s.shutdown(socket.SHUT_WR)])
@pytest.mark.parametrize(
    "fields", [{}, {"stream_format": "sse"}, {"stream": False}, {"response_format": "mp3"}, {"model": "stereo"}]
)
def test_a_client_that_leaves_frees_everything_within_a_second(served, fields, leave):
    model = fields.get("model", "tone")
    before = cancelled(served, model)
    gone = served.metric("omni_http_requests_total", endpoint=SPEECH, status="499")
    sock = speak(served, **fields)
    if fields.get("stream") is False:
        assert eventually(lambda: served.metric("omni_active", model=model) == 1)
    else:
        assert sock.recv(1000).startswith(b"HTTP/1.1 200 OK")
    leave(sock)
    assert eventually(lambda: cancelled(served, model) == before + 1)
    assert eventually(lambda: busy(served, model) == 0)
    assert eventually(lambda: served.metric("omni_http_requests_total", endpoint=SPEECH, status="499") == gone + 1)


BLOCKED = b'--X\r\nContent-Disposition: form-data; name="file"\r\n\r\nBLOCKED\r\n--X--\r\n'
MULTIPART = "multipart/form-data; boundary=X"


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    server_toys.GATE.clear()
    yield server_toys.GATE
    server_toys.GATE.set()


def test_a_client_that_leaves_while_its_request_waits(start, gate):
    """One worker, which another request keeps busy: the second is not even begun."""
    first, *others = server_toys.HEAR.stages
    stages = (first.model_copy(update={"options": {"workers": 1}}), *others)
    running = start(recipes=[server_toys.HEAR.model_copy(update={"stages": stages})])
    heard = connect(running.port, HEAR, BLOCKED, MULTIPART)
    assert eventually(lambda: running.metric("omni_stage_running", stage="hear") == 1)
    waiting = connect(running.port, HEAR, BLOCKED, MULTIPART)
    assert eventually(lambda: running.metric("omni_stage_streams", stage="hear") == 2)
    waiting.close()
    assert eventually(lambda: cancelled(running, "hear") == 1)
    assert running.metric("omni_stage_streams", stage="hear") == 1
    gate.set()
    assert heard.recv(1000).startswith(b"HTTP/1.1 200 OK")
    heard.close()
    assert eventually(lambda: busy(running, "hear") == 0)
    assert running.metric("omni_stage_items_total", stage="hear") == 1


@pytest.mark.parametrize("more", [b"", b'--X\r\nContent-Disposition: form-data; name="stream"\r\n\r\ntrue\r\n'])
def test_a_client_that_leaves_a_transcription(served, gate, more):
    before = cancelled(served, "hear")
    sock = connect(served.port, HEAR, more + BLOCKED, MULTIPART)
    assert eventually(lambda: served.metric("omni_active", model="hear") == 1)
    sock.close()
    assert eventually(lambda: cancelled(served, "hear") == before + 1)
    assert served.metric("omni_stage_streams", model="hear") == 0
    gate.set()
    assert eventually(lambda: busy(served, "hear") == 0)


def test_many_clients_that_leave_at_any_moment_leave_nothing(served):
    total = served.metric("omni_pipeline_requests_total", model="tone")
    for round_ in range(6):
        socks = [speak(served, input="FOREVER" if n % 2 else "one two") for n in range(10)]
        time.sleep(0.004 * round_)  # the moment that is tried
        for sock in socks:
            reset(sock)
    assert eventually(lambda: served.metric("omni_pipeline_requests_total", model="tone") == total + 60, 3)
    assert eventually(lambda: busy(served, "tone") == 0)
    assert eventually(lambda: served.metric("omni_http_in_flight") == 1)


@pytest.mark.parametrize("text", ["one two", "FOREVER", "one " * 60 + "BOOM"])
def test_every_codec_is_closed_however_its_request_ends(served, monkeypatch, text):
    """Its threads would live on until the garbage collector comes by."""
    closed: list[AudioOutput] = []
    monkeypatch.setattr(AudioOutput, "close", lambda self: closed.append(self))
    sock = speak(served, input=text, response_format="mp3")
    assert sock.recv(1000).startswith(b"HTTP/1.1 200 OK")
    if text == "FOREVER":
        sock.close()
    assert eventually(lambda: closed)
    sock.close()


def test_a_slow_client_holds_up_only_itself(served):
    slow = speak(served, input="FLOOD")
    assert slow.recv(10)
    assert eventually(lambda: _stands_still(served), 10)
    start = time.monotonic()
    quick = httpx.post(served.url + SPEECH, json={"input": "one two", "response_format": "pcm"})
    assert len(quick.content) == 9600
    assert time.monotonic() - start < 2
    slow.close()
    assert eventually(lambda: busy(served, "tone") == 0)


def _stands_still(running: Running) -> bool:
    """Whether a stage makes no more items: its client's buffers are full."""
    before = running.metric("omni_stage_items_total", model="tone", stage="sound")
    time.sleep(0.1)
    return running.metric("omni_stage_items_total", model="tone", stage="sound") == before


def test_a_client_that_takes_nothing_is_dropped_in_the_end(start):
    running = start(stall_seconds=0.3)
    stuck = speak(running, input="FLOOD", response_format="wav")
    assert eventually(lambda: running.metric("omni_active", model="tone") == 1)
    assert eventually(lambda: busy(running, "tone") == 0 and cancelled(running, "tone") == 1, 15)
    stuck.close()


def test_a_full_server_answers_429_with_retry_after(start):
    limits = omni.Limits(max_requests=2)
    running = start(recipes=[server_toys.TONE.model_copy(update={"limits": limits})])
    socks = [speak(running) for _ in range(2)]
    assert all(sock.recv(10) for sock in socks)
    refused = httpx.post(running.url + SPEECH, json={"input": "hi"})
    assert refused.status_code == 429
    assert int(refused.headers["retry-after"]) >= 1
    assert error(refused)["type"] == "rate_limit_error"
    assert running.metric("omni_pipeline_requests_total", outcome="refused") == 1
    for sock in socks:
        sock.close()
    assert eventually(lambda: httpx.post(running.url + SPEECH, json={"input": "hi"}).status_code == 200)


def test_a_request_that_takes_too_long_is_ended(start):
    limits = omni.Limits(timeout_s=0.3)
    running = start(recipes=[server_toys.TONE.model_copy(update={"limits": limits})])
    whole = httpx.post(running.url + SPEECH, json={"input": "FOREVER", "stream": False})
    assert (whole.status_code, error(whole)["code"]) == (504, "deadline_exceeded")
    with (
        httpx.stream("POST", running.url + SPEECH, json={"input": "FOREVER"}) as streamed,
        pytest.raises(httpx.RemoteProtocolError),
    ):
        streamed.read()
    assert eventually(lambda: busy(running, "tone") == 0)


def test_defaults_of_the_limits_are_bounded():
    settings = ServerSettings()
    assert settings.max_upload_mb == 1024
    assert settings.stall_seconds < 3600
