"""What arrives on a connection: multipart in every shape, limits, lengths that lie."""

from __future__ import annotations

import json
import os
import select
import socket
import zlib
from collections.abc import Iterator

import httpx
import pytest
from server_harness import Raw, eventually

MIB = 1 << 20


def part(name: str, body: bytes, *headers: str, filename: str | None = None) -> bytes:
    disposition = f'Content-Disposition: form-data; name="{name}"'
    if filename is not None:
        disposition += f'; filename="{filename}"'
    return ("--XX\r\n" + "\r\n".join([disposition, *headers]) + "\r\n\r\n").encode() + body + b"\r\n"


def form(*parts: bytes) -> bytes:
    return b"".join(parts) + b"--XX--\r\n"


HEADERS = {"content-type": "multipart/form-data; boundary=XX"}
FILE = b"\x00\r\n--X some sound \xff" * 100


def send(http: httpx.Client, body: bytes | Iterator[bytes], headers: dict[str, str] | None = None) -> httpx.Response:
    return http.post("/v1/audio/transcriptions", content=body, headers=headers or HEADERS)


def heard(response: httpx.Response) -> dict:
    assert response.status_code == 200, response.text
    return json.loads(response.json()["text"])


@pytest.mark.parametrize(
    "body",
    [
        form(part("model", b"hear"), part("file", FILE, "Content-Type: audio/wav", filename="a.wav")),
        form(part("file", FILE, "Content-Type: audio/wav", filename="a.wav"), part("model", b"hear")),
        form(part("file", FILE, filename="blob"), part("model", b"hear")),
        form(part("file", FILE, filename=""), part("model", b"hear")),
        form(part("file", FILE), part("model", b"hear")),
        form(part("file", FILE, "Content-Transfer-Encoding: binary", filename="upload"), part("model", b"whisper-1")),
        form(part("file", FILE)) + b"epilogue",
    ],
    ids=["fields first", "file first", "no type", "empty name", "no name", "binary", "epilogue"],
)
@pytest.mark.parametrize("chunked", [False, True])
def test_parts_in_every_shape(http, body, chunked):
    sent = (body[i : i + 1000] for i in range(0, len(body), 1000)) if chunked else body
    answer = heard(send(http, sent))
    assert (answer["bytes"], answer["crc"]) == (len(FILE), zlib.crc32(FILE))


def test_every_split_of_a_body_is_the_same(http):
    body = form(part("model", b"hear"), part("file", FILE[:40], filename="a"), part("language", b"en"))
    for size in (1, 2, 3, 7):
        assert heard(send(http, (body[i : i + size] for i in range(0, len(body), size))))["bytes"] == 40


def test_a_large_file_is_mapped_not_held(served, http):
    audio = os.urandom(7 * MIB)
    answer = heard(send(http, form(part("file", audio, filename="a"))))
    assert (answer["bytes"], answer["crc"]) == (len(audio), zlib.crc32(audio))
    assert eventually(lambda: served.app.state.runtime.spool._free == 8192 * MIB)


@pytest.mark.parametrize(
    ("body", "param", "needle"),
    [
        (form(part("model", b"hear")), "file", "missing"),
        (form(part("file", b"", filename="a.wav")), "file", "empty"),
        (form(part("file", FILE), part("file", FILE)), "file", "more than one"),
        (form(part("model", b"hear"), part("model", b"hear"), part("file", FILE)), "model", "twice"),
        (form(part("file", FILE), part("audio", FILE, filename="b.wav")), "audio", "only 'file'"),
        (form(part("file", FILE), part("prompt", b"x" * 65537)), "prompt", "65536"),
        (form(part("file", FILE), part("prompt", b"\xff\xfe")), None, "UTF-8"),
        (form(part("file", FILE), *[part(f"f{i}", b"") for i in range(64)]), None, "64 parts"),
        (form(part("file", FILE, "Content-Transfer-Encoding: base64")), None, "Content-Transfer-Encoding"),
        (form(b"--XX\r\nContent-Type: text/plain\r\n\r\nx\r\n"), None, "form-data"),
        (form(b"--XX\r\n" + b"X-A: b\r\n" * 100 + b"\r\nx\r\n"), None, "malformed"),
        (form(b"--XX\r\nX-A: " + b"b" * 100_000 + b"\r\n\r\nx\r\n"), None, "malformed"),
        (part("file", FILE), None, "ends before"),
        (part("file", FILE)[:-40], None, "ends before"),
        (b"", None, "ends before"),
        (b"no multipart at all", None, "malformed"),
    ],
)
def test_bad_forms(http, body, param, needle):
    answer = send(http, body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == param
    assert needle in error["message"]
    assert http.get("/ready").status_code == 200


@pytest.mark.parametrize("kind", ["audio/wav", "application/x-www-form-urlencoded"])
def test_a_body_that_is_no_form(http, kind):
    answer = send(http, FILE, {"content-type": kind})
    assert answer.status_code == 400
    assert "multipart form with 'file'" in answer.json()["error"]["message"]


@pytest.mark.parametrize("kind", ["multipart/form-data", "multipart/form-data; boundary=" + "x" * 300])
def test_bad_boundaries(http, kind):
    assert send(http, form(part("file", FILE)), {"content-type": kind}).status_code == 400


def refused(response: httpx.Response, limit: str) -> None:
    assert response.status_code == 413
    error = response.json()["error"]
    assert error["code"] == "request_too_large"
    assert error["param"] == ("file" if limit == "8" else None)
    assert f"{limit} MiB" in error["message"]
    assert response.headers["x-request-id"]


def test_too_large_files_are_refused(http):
    refused(send(http, form(part("file", bytes(8 * MIB + 1), filename="a"))), "8")
    assert heard(send(http, form(part("file", bytes(8 * MIB), filename="a"))))["bytes"] == 8 * MIB
    refused(http.post("/v1/audio/speech", content=b" " * (4 * MIB + 1)), "4")


@pytest.fixture
def raw(served) -> Iterator[Raw]:
    connection = Raw(served.port)
    yield connection
    connection.sock.close()


UPLOAD = "/v1/audio/transcriptions"
MULTIPART = "content-type: multipart/form-data; boundary=XX"


def test_two_gigabytes_are_refused_by_their_length_alone(raw):
    raw.head(UPLOAD, MULTIPART, f"content-length: {2 << 30}", "expect: 100-continue")
    answer = raw.sock.recv(4096)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"100 Continue" not in answer
    assert b"at most 8 MiB" in answer
    assert b"connection: close" in answer


def test_endless_chunks_are_refused_as_soon_as_they_are_too_many(served, raw):
    raw.head(UPLOAD, MULTIPART, "transfer-encoding: chunked")
    first = part("file", b"", filename="a")[:-2]
    raw.send(b"%x\r\n%s\r\n" % (len(first), first))
    block = b"10000\r\n" + bytes(65536) + b"\r\n"
    sent = 0
    raw.sock.setblocking(False)
    answer = pending = b""
    while sent < 64 * MIB and not answer:
        readable, writable, _ = select.select([raw.sock], [raw.sock], [], 10)
        if readable:
            answer = raw.sock.recv(4096)
        elif writable:
            pending = pending or block
            count = raw.sock.send(pending)
            sent += count
            pending = pending[count:]
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert sent < 32 * MIB
    raw.sock.close()
    assert eventually(lambda: served.app.state.runtime.spool._free == 8192 * MIB)


def test_a_body_shorter_than_its_length_is_dropped(served, raw):
    body = form(part("file", FILE))
    before = served.metric("omni_http_requests_total", endpoint=UPLOAD, status="499")
    raw.head(UPLOAD, MULTIPART, f"content-length: {len(body) + 100}")
    raw.send(body)
    raw.sock.shutdown(socket.SHUT_WR)
    assert raw.read() == b""
    assert served.metric("omni_http_requests_total", endpoint=UPLOAD, status="499") == before + 1


def test_a_body_longer_than_its_length_is_not_read_into_the_next_request(raw):
    body = form(part("file", FILE))
    raw.head(UPLOAD, MULTIPART, f"content-length: {len(body) - 8}")
    raw.send(body)
    answer = raw.read()
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1") == 1


def test_a_client_that_stops_sending_is_let_go(start):
    running = start(body_seconds=0.2)
    connection = Raw(running.port)
    connection.head(UPLOAD, MULTIPART, "content-length: 1000")
    connection.send(b"--XX\r\n")
    answer = connection.read()
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"0.2 s" in answer


def test_an_upload_that_is_more_than_all_may_be(start):
    running = start(max_upload_mb=8, max_spool_mb=5)
    with httpx.Client(base_url=running.url) as http:
        answer = send(http, form(part("file", bytes(6 * MIB))))
        assert answer.status_code == 413
        assert "alone needs more than the 5 MiB" in answer.json()["error"]["message"]
        assert heard(send(http, form(part("file", bytes(4 * MIB)))))["bytes"] == 4 * MIB


def test_compressed_bodies_are_refused(http):
    answer = http.post("/v1/audio/speech", content=b"x", headers={"content-encoding": "gzip"})
    assert answer.status_code == 400
    assert "Content-Encoding" in answer.json()["error"]["message"]
