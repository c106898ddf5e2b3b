"""Below the endpoints: what is no HTTP, heads that are too long or never end."""

from __future__ import annotations

import json
import socket
import time

import pytest
from server_harness import Running, eventually

from omni.server.protocol import MAX_HEAD

HEALTH = b"GET /health HTTP/1.1\r\nHost: here\r\n"


def connect(running: Running) -> socket.socket:
    return socket.create_connection(("127.0.0.1", running.port), timeout=10)


def exchange(running: Running, data: bytes) -> bytes:
    """All that comes back until the server closes the connection."""
    with connect(running) as client:
        client.sendall(data)
        return b"".join(iter(lambda: client.recv(65536), b""))


def refusal(answer: bytes) -> tuple[int, dict]:
    head, _, body = answer.partition(b"\r\n\r\n")
    lines = head.lower().split(b"\r\n")
    assert b"content-type: application/json" in lines
    assert b"connection: close" in lines
    assert f"content-length: {len(body)}".encode() in lines
    assert any(line.startswith(b"x-request-id: ") for line in lines)
    return int(head.split()[1]), json.loads(body)["error"]


@pytest.mark.parametrize(
    "data", [b"GARBAGE\r\n\r\n", HEALTH + b"Content-Length: many\r\n\r\n", HEALTH + b"no colon\r\n\r\n"]
)
def test_what_is_no_http_gets_the_envelope(served, data):
    status, error = refusal(exchange(served, data))
    assert status == 400
    assert error == {
        "message": "this is not a valid HTTP request",
        "type": "invalid_request_error",
        "param": None,
        "code": "invalid_http",
    }


@pytest.mark.parametrize("line", [b"X-Long: " + b"a" * MAX_HEAD, b"X-Many: 1\r\n" * (MAX_HEAD // 11 + 1)])
def test_heads_are_bounded(served, line):
    status, error = refusal(exchange(served, HEALTH + line))
    assert status == 431
    assert error["code"] == "headers_too_large"
    assert str(MAX_HEAD) in error["message"]


def test_a_second_head_on_a_connection_is_bounded_too(served):
    with connect(served) as client:
        client.sendall(HEALTH + b"\r\n")
        assert client.recv(65536).startswith(b"HTTP/1.1 200")
        client.sendall(HEALTH + b"X-Long: ")
        with pytest.raises((ConnectionResetError, BrokenPipeError)):  # it stops reading: nobody takes 16 MiB
            client.sendall(b"a" * 16 * 1024 * 1024)


def test_a_long_body_is_no_long_head(served):
    body = json.dumps({"input": "word " * MAX_HEAD, "response_format": "nonsense"}).encode()
    head = b"POST /v1/audio/speech HTTP/1.1\r\nHost: here\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
    answer = exchange(served, head % len(body) + body)
    assert answer.startswith(b"HTTP/1.1 400")
    assert b"response_format" in answer


def test_a_head_that_never_ends_is_given_up(start):
    running = start(body_seconds=0.3)
    status, error = refusal(exchange(running, HEALTH))
    assert (status, error["code"]) == (408, "request_timeout")


def test_a_connection_that_says_nothing_is_closed(start):
    running = start(body_seconds=0.3)
    assert exchange(running, b"") == b""


def test_an_answer_may_take_longer_than_the_next_head(start):
    """The limit is on heads: a request under way outlives it, whatever was sent behind it."""
    running = start(body_seconds=1)
    body = b'{"model": "tone", "input": "hello there", "response_format": "pcm"}'
    first = b"POST /v1/audio/speech HTTP/1.1\r\nHost: here\r\nContent-Length: %d\r\n\r\n" % len(body)
    with connect(running) as client:
        client.sendall(first + body[:-1])
        assert eventually(lambda: running.metric("omni_http_in_flight") >= 2, 5)
        began = time.monotonic()
        client.sendall(body[-1:] + HEALTH)
        answer = b"".join(iter(lambda: client.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 200")
    assert b"request_timeout" in answer
    assert time.monotonic() - began >= 0.1


OFFER = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n"


@pytest.mark.parametrize("cut", [0, 1, 40])
@pytest.mark.parametrize("chunked", [False, True])
def test_an_offer_of_http_2_is_declined_and_the_body_read(served, chunked, cut):
    """As Java's HttpClient and curl --http2 send every first request, the body in the same packet or after it."""
    body = b'{"model": "tone", "input": "hello", "nonsense": 1}'
    length = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: %d" % len(body)
    sent = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body) if chunked else body
    head = b"POST /v1/audio/speech HTTP/1.1\r\nHost: here\r\n" + OFFER + length + b"\r\n\r\n"
    with connect(served) as client:
        client.sendall(head + sent[:cut])
        assert eventually(lambda: served.metric("omni_http_in_flight") >= 2, 5)
        client.sendall(sent[cut:] + HEALTH + b"Connection: close\r\n\r\n")
        answer = b"".join(iter(lambda: client.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 400")
    assert b"nonsense" in answer
    assert answer.count(b"HTTP/1.1 200") == 1


def test_an_offer_of_http_2_in_pieces_is_declined(served):
    with connect(served) as client:
        for piece in (HEALTH, OFFER[:50], OFFER[50:], b"Connection: close\r\n", b"\r\n"):
            client.sendall(piece)
        answer = b"".join(iter(lambda: client.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 200")


def test_a_connect_is_refused(served):
    answer = exchange(served, b"CONNECT here:80 HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 4")


@pytest.mark.parametrize(
    ("path", "status"), [("/health", 200), ("/ready", 200), ("/v1/models", 200), ("/v1/audio/speech", 405)]
)
def test_head_is_get_without_the_body(http, path, status):
    answer = http.head(path)
    assert (answer.status_code, answer.content) == (status, b"")
    assert answer.headers["content-length"] == str(len(http.get(path).content))
    assert answer.headers["x-request-id"]
