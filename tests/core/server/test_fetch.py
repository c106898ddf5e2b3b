"""References by address: what is fetched, and what no client can make the server fetch."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from server_harness import error

from omni.errors import BadRequest, TooLarge
from omni.server.body import Budget
from omni.server.fetch import fetch, is_public
from omni.server.settings import ServerSettings

OPEN = ServerSettings(allow_private_urls=True, max_reference_mb=0.01, fetch_seconds=1)
LARGER = ServerSettings(allow_private_urls=True, fetch_seconds=5)
CLOSED = ServerSettings(fetch_seconds=2)


class Handler(BaseHTTPRequestHandler):
    release = threading.Event()

    def do_GET(self) -> None:
        port = self.server.server_address[1]
        if self.path.startswith("/to/"):
            self.send_response(302)
            self.send_header("location", self.path.removeprefix("/to/").replace("PORT", str(port)))
            self.end_headers()
        elif self.path == "/large":
            self.send_response(200)
            self.end_headers()
            self.wfile.write(bytes(20_000))
        elif self.path == "/slow":
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"x")
            self.wfile.flush()
            self.release.wait(10)
        elif self.path == "/missing":
            self.send_error(404)
        else:
            body = f"{self.path} {self.headers['host']} {self.headers['accept-encoding']}".encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def web() -> Iterator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_address[1]
    Handler.release.set()
    server.shutdown()
    thread.join()
    server.server_close()


def get(url: str, settings: ServerSettings = OPEN) -> bytes:
    with Budget(1).share() as share:
        return asyncio.run(fetch(url, settings, "references[0].audio", share)).tobytes()


def test_the_bytes_of_an_address(web):
    assert get(f"http://localhost:{web}/a%20b?c=d#e") == f"/a%20b?c=d localhost:{web} identity".encode()


def test_redirects_are_followed_a_few_times(web):
    assert get(f"http://localhost:{web}/to/http://127.0.0.1:PORT/x").startswith(f"/x 127.0.0.1:{web} ".encode())
    assert get(f"http://localhost:{web}/to//to//to//x").startswith(f"/x localhost:{web} ".encode())
    with pytest.raises(BadRequest, match="redirects more than 3 times"):
        get(f"http://localhost:{web}/to//to//to//to//x")


@pytest.mark.parametrize(
    ("path", "needle"),
    [("large", "larger than 0.01 MiB"), ("missing", "status 404"), ("slow", "did not answer within 1 s")],
)
def test_bounds(web, path, needle):
    with pytest.raises(BadRequest, match=needle) as caught:
        get(f"http://localhost:{web}/{path}")
    assert caught.value.param == "references[0].audio"


def test_private_addresses_are_refused(web, monkeypatch):
    hosts = [f"127.0.0.1:{web}", f"localhost:{web}", "[::1]", "10.0.0.1", "169.254.169.254", "0.0.0.0", "0x7f000001"]
    hosts += ["2130706433", "127.1", "[::ffff:127.0.0.1]", "[fe80::1]", "[64:ff9b::7f00:1]", "192.168.1.1:8080"]
    for host in hosts:
        with pytest.raises(BadRequest):
            get(f"http://{host}/", CLOSED)


def test_one_private_address_among_public_ones_is_enough(monkeypatch):
    async def resolve(self, host, port, **_):
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, port)) for ip in ("93.184.216.34", "10.0.0.7")]

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", resolve)
    with pytest.raises(BadRequest, match="private address"):
        get("http://example.com/", CLOSED)


def test_the_checked_address_is_the_one_that_is_connected_to(web, monkeypatch):
    """A name is resolved once: what it says a moment later does not matter."""
    asked = []

    async def resolve(self, host, port, **_):
        asked.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", resolve)
    assert get(f"http://rebinding.example:{web}/x") == f"/x rebinding.example:{web} identity".encode()
    assert [host for host in asked if host != "127.0.0.1"] == ["rebinding.example"]


def test_a_redirect_is_checked_like_the_first_address(web, monkeypatch):
    """The first host counts as public here; where it points to does not."""
    monkeypatch.setattr("omni.server.fetch.is_public", lambda ip: ip == "127.0.0.1")
    with pytest.raises(BadRequest, match="private address"):
        get(f"http://127.0.0.1:{web}/to/http://10.0.0.1/x", CLOSED)


@pytest.mark.parametrize(
    "url",
    [
        "ftp://example.com/a",
        "file:///etc/passwd",
        "http://",
        "http:///x",
        "http://user:pw@example.com/",
        "https://no-such-host.invalid/",
        "http://exa mple.com/",
        "http://[::1/",
        "http://example.com:99999/",
    ],
)
def test_addresses_that_are_none(url):
    with pytest.raises(BadRequest):
        get(url, CLOSED)


def test_what_is_fetched_needs_room(web):
    with Budget(0.1).share() as share, Budget(0.1).share() as other:
        share.take(90_000)
        with pytest.raises(TooLarge, match=r"alone needs more than the 0\.1 MiB"):
            asyncio.run(fetch(f"http://127.0.0.1:{web}/large", LARGER, "p", share))
        asyncio.run(fetch(f"http://127.0.0.1:{web}/large", LARGER, "p", other))


@pytest.mark.parametrize("ip", ["8.8.8.8", "93.184.216.34", "2606:4700:4700::1111", "2a00:1450:4001::5"])
def test_public(ip):
    assert is_public(ip)


@pytest.mark.parametrize(
    "ip",
    [
        *(
            "127.0.0.1",
            "10.1.2.3",
            "172.16.0.1",
            "192.168.0.1",
            "169.254.169.254",
            "100.64.0.1",
            "0.0.0.0",
            "224.0.0.1",
        ),
        *("255.255.255.255", "198.18.0.1", "192.0.2.1", "240.0.0.1", "::1", "::", "fe80::1", "fc00::1", "ff02::1"),
        *("::ffff:10.0.0.1", "64:ff9b::a00:1", "2002:a00:1::", "2001::1", "2001:db8::1", "::127.0.0.1", "fe80::1%eth0"),
        *("192.88.99.1", "fec0::1", "3fff::1", "2001:20::1", "4000::1", "100::1", "5f00::1", "::ffff:192.88.99.1"),
    ],
)
def test_not_public(ip):
    assert not is_public(ip)


def test_through_the_endpoint(http, web):
    body = {"input": "hi", "model": "stereo", "response_format": "pcm"}
    one = http.post("/v1/audio/speech", json=body | {"references": [{"audio": f"http://localhost:{web}/one"}]})
    two = http.post("/v1/audio/speech", json=body | {"references": [{"audio": f"http://localhost:{web}/two"}]})
    assert one.status_code == two.status_code == 200
    assert one.content != two.content
    bad = http.post("/v1/audio/speech", json=body | {"references": [{"audio": f"http://localhost:{web}/missing"}]})
    assert (bad.status_code, error(bad)["param"]) == (400, "references[0].audio")
