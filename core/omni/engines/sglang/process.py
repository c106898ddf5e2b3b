"""SGLang's process as the server sees it: started, spoken to, reaped."""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import wait
from pathlib import Path

from omni.engines.sglang import wire

log = logging.getLogger("omni.engines.sglang.log")

_GROUP_SECONDS = 5.0
_LAST_LINES = 60
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(: |$)")
"""The last line of a traceback."""


class Process:
    """A process group with its host at the head. What it prints is logged."""

    def __init__(self, device: str) -> None:
        self.leftovers: list[str] = []
        self._connection, theirs = Pipe()
        self._woken, self._waker = socket.socketpair()
        self._waker.setblocking(False)
        self._sending = threading.Lock()
        self._lines: deque[str] = deque(maxlen=_LAST_LINES)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "omni.engines.sglang.host", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=_environment(device),
            )
        self._pump = threading.Thread(target=self._read_log, name="omni-sglang-log", daemon=True)
        self._pump.start()

    def _read_log(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as stream:
            for raw in stream:
                if line := raw.decode("utf-8", "replace").rstrip():
                    self._lines.append(line)
                    log.info("%s", line)

    @property
    def pid(self) -> int:
        """Of the host, which is also the group's."""
        return self._process.pid

    def send(self, order: wire.Order) -> None:
        """Thread-safe. Of a process that has died nothing is said here: :meth:`reports` does."""
        with self._sending:
            try:
                wire.send_order(self._connection, order)
            except OSError:
                log.debug("not sent, the process has died: %s", type(order).__name__)

    def wake(self) -> None:
        """Let :meth:`reports` return; from any thread, does not block."""
        try:
            self._waker.send(b"x")
        except OSError:
            return  # it is full of wake-ups, or closed

    def reports(self) -> list[wire.Report]:
        """What has come in; waits until there is something, or a wake-up.

        Raises:
            EOFError, OSError: the process has died.
        """
        ready = wait([self._connection, self._woken])
        if self._woken in ready:
            self._woken.recv(1 << 16)
        return wire.receive_reports(self._connection) if self._connection in ready else []

    def end(self) -> None:
        """Kill it: SGLang has nothing to save, and does the same to its own."""
        self._process.kill()

    def reap(self) -> str | None:
        """After :meth:`reports` has raised, or when it should go: end all of it and remove what it leaves. Gives the
        exception in its log that says why it has died, if there is one."""
        self._process.kill()
        self._process.wait()
        # Its children die with it, and only then is the log at its end.
        self._pump.join(_GROUP_SECONDS)
        if self._pump.is_alive():
            # One that is left keeps the group's number from being given to others.
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._pump.join(_GROUP_SECONDS)
        with self._sending:
            self._connection.close()
        self._woken.close()
        self._waker.close()
        for file in self.leftovers:
            Path(file).unlink(missing_ok=True)
        raised = [line for line in self._lines if _EXCEPTION.match(line)]
        return raised[-1] if raised else None


def _environment(device: str) -> dict[str, str]:
    """For SGLang's processes alone: where our model class is, and the modules that this process sees."""
    found = {
        **os.environ,
        "SGLANG_EXTERNAL_MODEL_PACKAGE": "omni.engines.sglang.models",
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }
    if device.startswith("cpu"):
        found["SGLANG_USE_CPU_ENGINE"] = "1"
    return found
