"""What the endpoints share: the service once it is there, settings, metrics, budgets."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Literal, TypeAlias

from omni.audio import FORMATS, AudioOutput
from omni.errors import Unavailable
from omni.server.body import Budget, Intake
from omni.server.metrics import Metrics
from omni.server.settings import ServerSettings
from omni.service import Service

log = logging.getLogger("omni.server")

ServiceFactory: TypeAlias = Callable[[], Coroutine[Any, Any, Service]]
State: TypeAlias = Literal["loading", "ready", "draining", "failed"]


class Runtime:
    """From loading to draining. Endpoints take :attr:`service`, which refuses (503) while there is none to use."""

    def __init__(self, service: Service | ServiceFactory, settings: ServerSettings) -> None:
        self.settings = settings
        self.state: State = "loading"
        self.error: BaseException | None = None
        self.metrics = Metrics(lambda: self._service)
        self.memory = Budget(settings.max_body_memory_mb)
        self.spool = Budget(settings.max_spool_mb)
        self.intake = Intake(settings.body_seconds)
        self.when_loaded: Callable[[bool], None] = lambda success: None
        """Called once, when the service is there (True) or will never be (False)."""
        self._listeners: list[Callable[[Service], None]] = []
        self._service: Service | None = None
        self._factory: ServiceFactory | None = None
        if isinstance(service, Service):
            self._service = service
            self.state = "ready"
        else:
            self._factory = service

    @property
    def service(self) -> Service:
        """The service, while requests are taken.

        Raises:
            Unavailable: it is still loading, shutting down, or failed to load.
        """
        if self._service is None or self.state != "ready":
            raise Unavailable(
                {
                    "loading": "the models are still being loaded",
                    "draining": "the server is shutting down",
                    "failed": "the models could not be loaded",
                    "ready": "the server is not ready",
                }[self.state],
                code=self.state,
                retry_after=2.0 if self.state == "loading" else 5.0,
            )
        return self._service

    def on_service(self, listener: Callable[[Service], None]) -> None:
        """Call ``listener`` with the service, now if it is there already."""
        if self._service is not None:
            listener(self._service)
        else:
            self._listeners.append(listener)

    async def load(self) -> None:
        """Run the factory, if one was given; what it raises is logged and kept in :attr:`error`."""
        if self._factory is not None:
            try:
                warm = asyncio.create_task(asyncio.to_thread(_warm_up))
                self._service = await self._factory()
                await warm
                for listener in self._listeners:
                    listener(self._service)
            except Exception as error:  # noqa: BLE001 - serve() raises it; until then /ready answers
                self.state, self.error = "failed", error
                log.error("the models could not be loaded: %s", error)
                self.when_loaded(False)
                return
            if self.state == "loading":
                self.state = "ready"
        if self.state == "ready":
            self.when_loaded(True)

    async def drain(self, seconds: float) -> int:
        """Refuse new work, and requests whose bodies are not complete, and wait for what is under way; returns how many
        requests were cut off after ``seconds``."""
        self.state = "draining"
        self.intake.close()
        return await self._service.drain(seconds) if self._service is not None else 0

    async def close(self) -> None:
        """Close the service, if it is this server's own."""
        if self._factory is not None and self._service is not None:
            await self._service.close()


def _warm_up() -> None:
    """Load FFmpeg and soxr now: the first request would wait for them, and with it the event loop."""
    for name in FORMATS:
        AudioOutput(name, 24000, 48000).finish()


async def cancel(task: asyncio.Task[None]) -> None:
    """Cancel a task and wait until it has ended, however it does."""
    task.cancel()
    await asyncio.wait([task])
