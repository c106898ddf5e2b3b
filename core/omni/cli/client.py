"""One request, to a server or to a recipe that is loaded here; both take the same way through the server's code."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import click
import httpx

from omni.cli.inproc import AppTransport
from omni.cli.progress import Bars, reporter
from omni.cli.selection import Selection
from omni.cli.state import State
from omni.config import RecipeConfig
from omni.errors import OmniError
from omni.plugins import Plugins

_CONNECT_SECONDS = 10.0


class _Failures(logging.Handler):
    """Keeps the last error that was logged with its exception, and keeps the log off the terminal."""

    def __init__(self) -> None:
        super().__init__()
        self.error: OmniError | None = None

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, OmniError):
            self.error = error


@dataclass(frozen=True)
class Server:
    """A server somewhere, and what it calls the model (None: its first for the task)."""

    url: str
    api_key: str | None
    model: str | None

    @property
    def failure(self) -> OmniError | None:
        """Why it failed inside, which a server elsewhere does not tell."""
        return None

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[httpx.AsyncClient]:
        headers = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        timeout = httpx.Timeout(None, connect=_CONNECT_SECONDS)
        async with httpx.AsyncClient(base_url=self.url, headers=headers, timeout=timeout) as client:
            yield client


@dataclass(frozen=True)
class Here:
    """A recipe that is loaded for one request and closed after it."""

    config: RecipeConfig
    plugins: Plugins
    _failures: _Failures = field(default_factory=_Failures)

    @property
    def failure(self) -> OmniError | None:
        """What the server's code only logs, so that strangers do not see it."""
        return self._failures.error

    @property
    def model(self) -> str:
        return self.config.recipe.name

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[httpx.AsyncClient]:
        from omni.server.app import create_app
        from omni.server.settings import ServerSettings
        from omni.service import Service

        logging.getLogger("omni").addHandler(self._failures)
        progress = reporter([self.config])
        try:
            # Plain lines would only be noise around a single answer; a bar goes away by itself.
            service = await Service.launch(
                [self.config], self.plugins, progress=progress if isinstance(progress, Bars) else None
            )
        finally:
            progress.close()
        try:
            transport = AppTransport(create_app(service, ServerSettings()))
            async with httpx.AsyncClient(transport=transport, base_url="http://omni", timeout=None) as client:
                yield client
        finally:
            await service.close()
            logging.getLogger("omni").removeHandler(self._failures)


def target(state: State, url: str | None, api_key: str | None, selection: Selection, kind: str) -> Server | Here:
    """Where a request goes.

    Raises:
        click.UsageError: options of a local recipe together with ``--url``.
        OmniError: no recipe fits, or a setting fits none.
    """
    if len(selection.recipes) > 1:
        raise click.UsageError("--recipe: one is enough")
    if url is None:
        (config,) = selection.configs(state.plugins, kind)
        return Here(config, state.plugins)
    if selection.weights or selection.sets or selection.engine or selection.file is not None:
        raise click.UsageError(
            "--weights, --set, --engine and --config are for a recipe that is loaded here, not for --url"
        )
    return Server(url.rstrip("/").removesuffix("/v1"), api_key, selection.recipes[0] if selection.recipes else None)


def run(
    place: Server | Here,
    path: str,
    *,
    json: dict[str, Any] | None = None,
    form: dict[str, Any] | None = None,
    upload: tuple[str, IO[bytes] | bytes] | None = None,
    output: Path | None = None,
    end: bytes = b"",
) -> None:
    """POST ``json``, or ``form`` with the file ``upload``, and write the answer to ``output`` (None: stdout).

    ``end`` is added when the answer does not end in it.

    Raises:
        OmniError: the answer is an error, or breaks off; then ``output`` is left as it was.
        OSError: it cannot be written.
    """
    model = {} if place.model is None else {"model": place.model}
    body: dict[str, Any] = {"json": {**model, **json}} if json is not None else {"data": {**model, **(form or {})}}
    if upload is not None:
        body["files"] = {"file": upload}

    async def exchange() -> None:
        async with place.connect() as client, client.stream("POST", path, **body) as response:
            if response.status_code != 200:
                raise OmniError(_message(response.status_code, await response.aread()))
            with _sink(output) as sink:
                chunk = b""
                async for chunk in response.aiter_bytes():
                    sink.write(chunk)
                    sink.flush()
                if not chunk.endswith(end):
                    sink.write(end)
            if response.headers.get("x-omni-finish-reason") == "length":
                click.echo("a limit cut the answer short", err=True)

    try:
        asyncio.run(exchange())
    except OmniError:
        if place.failure is not None:
            raise place.failure from None
        raise
    except httpx.TransportError as error:
        raise place.failure or _readable(error) from error
    except httpx.InvalidURL as error:
        raise OmniError(f"--url: {error}") from error


def _readable(error: httpx.TransportError) -> OmniError:
    reason = str(error) or type(error).__name__
    match error:
        case httpx.UnsupportedProtocol():
            return OmniError(f"--url: {reason}")
        case httpx.ConnectError() | httpx.ConnectTimeout():
            return OmniError(f"no server answers there: {reason}")
        case _:
            return OmniError(f"the answer broke off: {reason}")


def _message(status: int, body: bytes) -> str:
    """What an error answer says: OpenAI's envelope where it is one, else the start of the text."""
    import json

    try:
        error = json.loads(body)["error"]
        param = f" (field {error['param']!r})" if error.get("param") else ""
        return f"{error['message']}{param}"
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"the server answered {status}: {body[:200].decode('utf-8', 'replace')}"


@contextmanager
def _sink(output: Path | None) -> Iterator[IO[bytes]]:
    """A file appears under its name only when it is complete; pipes and devices are written directly."""
    if output is None:
        yield sys.stdout.buffer
    elif output.exists() and not output.is_file():
        with output.open("wb") as file:
            yield file
    else:
        part = output.with_name(f".{output.name}.{os.getpid()}.part")
        try:
            with part.open("wb") as file:
                yield file
            part.replace(output)
        finally:
            part.unlink(missing_ok=True)
