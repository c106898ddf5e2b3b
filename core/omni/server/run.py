"""Serving an app: a socket that is bound first, signals that drain, an exit that is clean."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn
from fastapi import FastAPI

from omni.errors import ConfigError
from omni.server.protocol import Protocol
from omni.server.runtime import Runtime, log

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_BACKLOG = 2048


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one (``getsockname`` says which).

    Raises:
        ConfigError: the port is taken or needs privileges, or the host is not this machine's.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except OSError as error:
        raise ConfigError(f"the host {host!r} cannot be found: {error.strerror}") from error
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(_BACKLOG)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(f"port {port} on {host} is already in use; choose another with --port") from error
        raise ConfigError(f"cannot listen on {host}, port {port}: {error.strerror}") from error
    sock.setblocking(False)
    return sock


def serve(app: FastAPI, sock: socket.socket, on_ready: Callable[[], None] | None = None) -> None:
    """Serve until SIGINT or SIGTERM, then drain and return. ``on_ready`` is called once, when requests are taken.

    The first signal turns ``/ready`` and new work into 503 and lets requests under way go on for ``drain_seconds``;
    a second one ends them.

    Raises:
        Exception: whatever the service factory raised.
    """
    Server(app, on_ready).run(sockets=[sock])
    error = app.state.runtime.error
    if error is not None:
        raise error


def _websockets() -> Any:
    try:
        from omni.server.sockets import SocketProtocol
    except ImportError:
        # No route of core's is one; a plugin with such routes brings wsproto.
        return "auto"
    return SocketProtocol


class Server(uvicorn.Server):
    """uvicorn with our life: it drains before it stops listening, and stops when loading fails."""

    def __init__(self, app: FastAPI, on_ready: Callable[[], None] | None = None) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                loop="uvloop",
                http=Protocol,
                ws=_websockets(),
                lifespan="on",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                backlog=_BACKLOG,
                # Longer than clients keep an idle connection, so that they do not write into one that closes.
                timeout_keep_alive=75,
            )
        )
        self._runtime: Runtime = app.state.runtime
        self._runtime.when_loaded = self._loaded
        self._on_ready = on_ready
        self._stops = 0
        self._draining: set[asyncio.Task[None]] = set()

    def _loaded(self, success: bool) -> None:
        if not success:
            self.should_exit = True
        elif self._on_ready is not None:
            self._on_ready()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """As uvicorn's, but a signal drains, and is not raised again after a clean end."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self.stop)
        try:
            yield
        finally:
            for number in _SIGNALS:
                loop.remove_signal_handler(number)

    def stop(self) -> None:
        """Begin to drain; the second call ends what is under way, a third does not wait for anything. To be called on
        the loop's thread."""
        self._stops += 1
        if self._stops > 2:
            self.force_exit = self.should_exit = True
            return
        limit = self._runtime.settings.drain_seconds if self._stops == 1 else 0.0
        task = asyncio.create_task(self._drain(limit))
        self._draining.add(task)
        task.add_done_callback(self._draining.discard)

    async def _drain(self, limit: float) -> None:
        end = time.monotonic() + limit
        log.info("draining: requests under way may go on for %g s", limit)
        cut_off = await self._runtime.drain(limit)
        if cut_off:
            log.warning("%d requests were cut off", cut_off)
        # What the pipelines have made still has to reach the clients.
        self.config.timeout_graceful_shutdown = max(1, round(end - time.monotonic()))
        self.should_exit = True
