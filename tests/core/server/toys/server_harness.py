"""A real server on a free port, in a thread of this process; and how its answers are read."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx
import server_toys

from omni.config import configure
from omni.plugins import Plugins
from omni.server.app import create_app
from omni.server.openai_names import model_aliases
from omni.server.run import Server, bind
from omni.server.settings import ServerSettings
from omni.service import Service


def toy_plugins() -> Plugins:
    plugins = Plugins.load(points=[])
    plugins.add("toys", server_toys.Plugin)
    return plugins


class Running:
    """A server of the toy recipes."""

    def __init__(self, settings: ServerSettings, recipes=server_toys.RECIPES, factory=None) -> None:
        async def load() -> Service:
            return await Service.launch(configure(recipes), toy_plugins(), aliases=model_aliases(settings))

        self.sock = bind("127.0.0.1", 0)
        self.port = self.sock.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.ready = threading.Event()
        self.app = create_app(factory or load, settings)
        self.server = Server(self.app, self.ready.set)
        self.thread = threading.Thread(target=self._run)
        self.loop: asyncio.AbstractEventLoop | None = None
        self.thread.start()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=self.server.config.get_loop_factory()) as runner:
            self.loop = runner.get_loop()
            runner.run(self.server.serve(sockets=[self.sock]))

    def stop(self) -> None:
        if self.thread.is_alive():
            assert self.loop is not None
            self.loop.call_soon_threadsafe(self.server.stop)
        self.thread.join(20)
        assert not self.thread.is_alive()

    def metrics(self) -> str:
        return httpx.get(self.url + "/metrics").text

    def metric(self, name: str, **labels: str) -> float:
        """The sum of all samples of a metric that have these labels."""
        total = 0.0
        for line in self.metrics().splitlines():
            if match := re.fullmatch(r"(\w+)(?:\{(.*)\})? (\S+)", line):
                found = dict(re.findall(r'(\w+)="([^"]*)"', match[2] or ""))
                if match[1] == name and labels.items() <= found.items():
                    total += float(match[3])
        return total


class Raw:
    """A connection on which anything may be sent."""

    def __init__(self, port: int) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=10)

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def head(self, path: str, *headers: str) -> None:
        self.send("\r\n".join([f"POST {path} HTTP/1.1", "host: x", *headers, "", ""]).encode())

    def websocket(self, path: str) -> None:
        self.send(
            f"GET {path} HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
            "sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n".encode()
        )
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += self.sock.recv(1)
        assert head.startswith(b"HTTP/1.1 101 ")

    def read(self) -> bytes:
        """All until the server closes the connection."""
        data = b""
        try:
            while block := self.sock.recv(65536):
                data += block
        except ConnectionResetError:
            pass
        return data


def eventually(check: Callable[[], Any], seconds: float = 1.0) -> Any:
    """Wait until ``check`` is true, at most ``seconds``; what it gave last."""
    end = time.monotonic() + seconds
    while not (result := check()) and time.monotonic() < end:
        time.sleep(0.01)
    return result


def error(response: httpx.Response) -> dict[str, str | None]:
    """The envelope's content; it has OpenAI's four keys and nothing else."""
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    return body["error"]


def events(text: str) -> list[dict[str, Any]]:
    """The data of server-sent events, every one complete."""
    assert text.endswith("\n\n")
    return [json.loads(block.removeprefix("data: ")) for block in text.removesuffix("\n\n").split("\n\n")]
