"""Servers of the toy recipes, and clients of them."""

from __future__ import annotations

import sys
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
from server_harness import Running  # noqa: E402

from omni.server.settings import ServerSettings  # noqa: E402


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
