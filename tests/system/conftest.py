"""Real ``omni`` processes."""

from __future__ import annotations

import contextlib
import os
import queue
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

PATIENCE = 60.0
"""Seconds after which something has gone wrong; far more than anything here takes."""


class Server:
    """``omni launch`` as a process, from its first line of output to its exit."""

    def __init__(self, args: list[str], env: dict[str, str], cwd: Path) -> None:
        self.process = subprocess.Popen(
            args, env=env, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.banner: list[str] = []
        self.log: queue.Queue[str | None] = queue.Queue()
        self._threads = [
            threading.Thread(target=self._copy, args=(self.process.stderr, self.log), daemon=True),
        ]
        out: queue.Queue[str | None] = queue.Queue()
        self._threads.append(threading.Thread(target=self._copy, args=(self.process.stdout, out), daemon=True))
        for thread in self._threads:
            thread.start()
        while not (self.banner and self.banner[-1].startswith("Ctrl-C")):
            line = out.get(timeout=PATIENCE)
            if line is None:
                raise AssertionError(f"the server did not come up: {self.errors()}")
            self.banner.append(line.rstrip("\n"))

    @staticmethod
    def _copy(stream, lines: queue.Queue[str | None]) -> None:
        for line in stream:
            lines.put(line)
        lines.put(None)

    @property
    def url(self) -> str:
        found = re.search(r"http://\S+?:\d+", self.banner[0])
        assert found is not None
        return found.group()

    @property
    def curls(self) -> list[str]:
        """The printed command lines, as they are."""
        return [line.strip() for line in self.banner if line.strip().startswith("curl ")]

    def wait_for(self, text: str) -> None:
        """Read the log up to a line that holds ``text``."""
        while text not in (line := self.log.get(timeout=PATIENCE) or ""):
            assert line, f"the log ended without {text!r}"

    def errors(self) -> str:
        lines = []
        while (line := self.log.get(timeout=PATIENCE)) is not None:
            lines.append(line)
        return "".join(lines)

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def exit_code(self) -> int:
        return self.process.wait(PATIENCE)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for thread in self._threads:
            thread.join()
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()


def environment(**variables: str) -> dict[str, str]:
    """This environment without what would steer ``omni``."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OMNI_", "PYTEST_"))}
    return kept | {"OMP_NUM_THREADS": "1"} | variables


Launch = Callable[..., contextlib.AbstractContextManager[Server]]


@pytest.fixture(scope="session")
def launch(tmp_path_factory: pytest.TempPathFactory) -> Launch:
    """``with launch("--recipe", "x", python=…, OMNI_API_KEY=…) as server``: serves on a free port."""

    @contextlib.contextmanager
    def start(*args: str, python: str = sys.executable, **variables: str) -> Iterator[Server]:
        command = [python, "-m", "omni", "launch", "--port", "0", *args]
        server = Server(command, environment(**variables), tmp_path_factory.mktemp("server"))
        try:
            yield server
        finally:
            server.close()

    return start


def run(*args: object, python: str = sys.executable, cwd: Path | None = None, **variables: str):
    """``omni`` with arguments, to its end."""
    return subprocess.run(
        [python, "-m", "omni", *map(str, args)],
        env=environment(**variables),
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


@pytest.fixture(scope="session")
def omni() -> Callable[..., subprocess.CompletedProcess[str]]:
    return run
