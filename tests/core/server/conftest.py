"""A real server on a free port, in a thread of this process."""

from __future__ import annotations

import asyncio
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

TOYS = str(Path(__file__).parent / "toys")
if TOYS not in sys.path:
    sys.path.insert(0, TOYS)

import server_toys  # noqa: E402

from omni.config import configure  # noqa: E402
from omni.plugins import Plugins  # noqa: E402
from omni.server.app import create_app  # noqa: E402
from omni.server.openai_names import model_aliases  # noqa: E402
from omni.server.run import Server, bind  # noqa: E402
from omni.server.settings import ServerSettings  # noqa: E402
from omni.service import Service  # noqa: E402


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


def eventually(check: Callable[[], Any], seconds: float = 1.0) -> Any:
    """Wait until ``check`` is true, at most ``seconds``; what it gave last."""
    end = time.monotonic() + seconds
    while not (result := check()) and time.monotonic() < end:
        time.sleep(0.01)
    return result


@pytest.fixture(scope="session")
def served() -> Iterator[Running]:
    running = Running(ServerSettings(max_upload_mb=8, max_json_mb=4, max_reference_mb=1, allow_private_urls=True))
    assert running.ready.wait(20)
    yield running
    running.stop()


@pytest.fixture
def start() -> Iterator[Callable[..., Running]]:
    """Start further servers with settings of their own."""
    running: list[Running] = []

    def begin(*, wait: bool = True, recipes=server_toys.RECIPES, factory=None, **settings: Any) -> Running:
        one = Running(ServerSettings(**settings), recipes, factory)
        running.append(one)
        assert not wait or one.ready.wait(20)
        return one

    yield begin
    for one in running:
        one.stop()


@pytest.fixture
def http(served: Running) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=served.url, timeout=20) as client:
        yield client


@pytest.fixture
def ai(served: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=served.url + "/v1", api_key="any", max_retries=0, timeout=20) as client:
        yield client
