"""A server of its own process for the benchmarks: ``omni launch`` on a free port until the measuring is done."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


@contextmanager
def launched(*arguments: str) -> Iterator[str]:
    """Run ``omni launch`` with ``arguments``; gives its address once it is ready."""
    port = free_port()
    command = [sys.executable, "-m", "omni", "launch", "--port", str(port), *arguments]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        wait_until_ready(url, process)
        yield url
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_until_ready(url: str, process: subprocess.Popen[bytes], seconds: float = 120, every: float = 0.01) -> None:
    """Ask ``/ready`` until it says so; ends the program when the server ends or takes too long."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if process.poll() is not None:
            raise SystemExit(f"the server ended with {process.returncode}")
        try:
            if httpx.get(f"{url}/ready").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(every)
    raise SystemExit(f"the server was not ready after {seconds:g} s")
