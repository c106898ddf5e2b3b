"""What the framework costs: omni beside a bare FastAPI StreamingResponse that sends the same bytes.

Both answer POST /v1/audio/speech with 20 chunks of 4 KB of pcm, each in a process of its own, driven by the same
client in turns: 1 and 64 connections at a time. omni runs a recipe of one stage and one of three.

    python bench/framework_cost.py [--seconds 4] [--rounds 3]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httptools
import psutil
import uvloop

sys.path.insert(0, str(Path(__file__).parent / "toys"))
CHUNKS, CHUNK_BYTES = 20, 4096
BODY = json.dumps({"input": "twenty chunks", "voice": "alloy", "response_format": "pcm"}).encode()
SERVERS = ("bare", "omni-1", "omni-3")


@dataclass
class Numbers:
    """One server at one concurrency, over all rounds."""

    first: list[float] = field(default_factory=list)
    requests: int = 0
    seconds: float = 0.0
    cpu: float = 0.0

    @property
    def row(self) -> tuple[float, float, float, float]:
        """First chunk p50 and p95 (ms), requests/s, server CPU per request (ms)."""
        ordered = sorted(self.first)
        return (
            1000 * statistics.median(ordered),
            1000 * ordered[int(0.95 * (len(ordered) - 1))],
            self.requests / self.seconds,
            1000 * self.cpu / self.requests,
        )


class Connection(asyncio.Protocol):
    """One keep-alive connection: a request after the other until it is told to stop."""

    def __init__(self, numbers: Numbers, path: str) -> None:
        self.numbers = numbers
        self.request = (
            f"POST {path} HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
            f"content-length: {len(BODY)}\r\n\r\n"
        ).encode() + BODY
        self.going = True
        self.done = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.send()

    def send(self) -> None:
        self.parser = httptools.HttpResponseParser(self)
        self.size = 0
        self.started = time.perf_counter()
        self.transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        if self.size == 0:
            self.numbers.first.append(time.perf_counter() - self.started)
        self.size += len(body)

    def on_message_complete(self) -> None:
        status = self.parser.get_status_code()
        if status != 200 or self.size != CHUNKS * CHUNK_BYTES:
            self.done.set_exception(RuntimeError(f"status {status}, {self.size} bytes"))
            self.transport.close()
            return
        self.numbers.requests += 1
        if self.going:
            self.send()
        else:
            self.transport.close()
            self.done.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(error or ConnectionError("the server closed the connection"))


async def drive(port: int, path: str, connections: int, seconds: float, numbers: Numbers) -> None:
    loop = asyncio.get_running_loop()
    started = time.perf_counter()
    made = [
        await loop.create_connection(lambda: Connection(numbers, path), "127.0.0.1", port) for _ in range(connections)
    ]
    await asyncio.sleep(seconds)
    for _, connection in made:
        connection.going = False
    await asyncio.gather(*(connection.done for _, connection in made))
    numbers.seconds += time.perf_counter() - started


class Server:
    """A server in a process of its own."""

    def __init__(self, name: str) -> None:
        self.name = name
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen([sys.executable, __file__, "--serve", name, str(self.port)], env=environment)
        self.info = psutil.Process(self.process.pid)
        end = time.monotonic() + 60
        while time.monotonic() < end and self.process.poll() is None:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/ready", timeout=1):
                    return
            except OSError:
                time.sleep(0.05)
        raise RuntimeError(f"{name} did not start")

    def cpu(self) -> float:
        times = self.info.cpu_times()
        return float(times.user + times.system)

    def measure(self, connections: int, seconds: float, numbers: Numbers) -> None:
        before = self.cpu()
        uvloop.run(drive(self.port, "/v1/audio/speech", connections, seconds, numbers))
        numbers.cpu += self.cpu() - before


def serve_bare(port: int) -> None:
    import uvicorn
    from bare import app

    uvicorn.run(app, port=port, loop="uvloop", http="httptools", access_log=False, log_level="warning")


def serve_omni(port: int, stages: int) -> None:
    import cost_toys

    from omni.config import configure
    from omni.plugins import Plugins
    from omni.server.app import create_app
    from omni.server.openai_names import model_aliases
    from omni.server.run import bind, serve
    from omni.server.settings import ServerSettings
    from omni.service import Service

    settings = ServerSettings(port=port)

    async def load() -> Service:
        configs = configure([cost_toys.recipe(stages)])
        return await Service.launch(configs, Plugins.load(points=[]), aliases=model_aliases(settings))

    serve(create_app(load, settings), bind("127.0.0.1", port))


def table(results: dict[tuple[str, int], Numbers], levels: Sequence[int]) -> str:
    head = ("streams", "server", "first p50 ms", "p95 ms", "requests/s", "CPU ms/request", "CPU ratio", "rate ratio")
    lines = [" | ".join(head), " | ".join("---" for _ in head)]
    for level in levels:
        bare = results["bare", level].row
        for name in SERVERS:
            row = results[name, level].row
            cells = [f"{row[0]:.2f}", f"{row[1]:.2f}", f"{row[2]:.0f}", f"{row[3]:.2f}"]
            ratios = [f"{row[3] / bare[3]:.2f}", f"{row[2] / bare[2]:.2f}"]
            lines.append(" | ".join([str(level), name, *cells, *ratios]))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=4.0, help="per server, concurrency and round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--serve", nargs=2, metavar=("NAME", "PORT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        name, port = options.serve[0], int(options.serve[1])
        if name == "bare":
            serve_bare(port)
        else:
            serve_omni(port, int(name.removeprefix("omni-")))
        return
    levels = (1, 64)
    servers = [Server(name) for name in SERVERS]
    results = {(server.name, level): Numbers() for server in servers for level in levels}
    try:
        for server in servers:
            server.measure(8, 1.0, Numbers())
        for _ in range(options.rounds):
            for level in levels:
                for server in servers:
                    server.measure(level, options.seconds, results[server.name, level])
    finally:
        for server in servers:
            server.process.terminate()
            server.process.wait(10)
    print(table(results, levels))
    print("\nlimits: CPU ratio 2 and rate ratio 0.5 at 64; first chunk 3 ms after bare's at 1")


if __name__ == "__main__":
    main()
