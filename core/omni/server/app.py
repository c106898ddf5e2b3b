"""The FastAPI application: routes, the one middleware, the errors' envelope, a life from loading to closing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.routing import Route
from starlette.types import ASGIApp, Lifespan, Receive, Scope, Send

from omni.errors import OmniError
from omni.server import models, openapi, speech, transcriptions
from omni.server.errors import on_bug, on_http_exception, on_omni_error, on_validation_error
from omni.server.middleware import Middleware
from omni.server.runtime import Runtime, ServiceFactory, cancel
from omni.server.settings import ServerSettings
from omni.service import Service


class Application(FastAPI):
    """FastAPI behind our own middleware as the outermost layer."""

    def __init__(self, runtime: Runtime, direct: Mapping[str, ASGIApp], lifespan: Lifespan[Any]) -> None:
        super().__init__(title="omni", lifespan=lifespan, redoc_url=None)
        self.state.runtime = runtime
        self.direct = direct
        self._entrance = Middleware(super().__call__, runtime, direct)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._entrance(scope, receive, send)


def create_app(service: Service | ServiceFactory, settings: ServerSettings | None = None) -> FastAPI:
    """The server for ``service``, or for what an async factory gives.

    A factory runs in the app's lifespan while ``/health`` answers already and everything else is 503; plugins' routes
    appear when it is done. The app closes a service that its factory made, and none that it was given.
    ``app.state.runtime`` is the :class:`omni.server.runtime.Runtime`.

    Raises:
        ConfigError: a parameter of a recipe has the name of one of core's fields (with a factory: from it).
    """
    settings = settings or ServerSettings()
    runtime = Runtime(service, settings)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        loading = asyncio.create_task(runtime.load())
        try:
            yield
        finally:
            await cancel(loading)
            await runtime.close()

    speak, hear = speech.SpeechEndpoint(runtime), transcriptions.TranscriptionEndpoint(runtime)
    app = Application(runtime, {speech.PATH: speak, transcriptions.PATH: hear}, lifespan=lifespan)
    app.state.speech = speak
    app.add_exception_handler(Exception, on_bug)
    app.add_exception_handler(OmniError, on_omni_error)
    app.add_exception_handler(HTTPException, on_http_exception)
    app.add_exception_handler(RequestValidationError, on_validation_error)
    app.router.routes += [Route(path, endpoint, methods=["POST"]) for path, endpoint in app.direct.items()]
    app.include_router(models.routes(runtime))

    def add_plugins(ready: Service) -> None:
        router = APIRouter()
        ready.plugins.add_routes(router, ready)
        app.include_router(router)
        app.openapi_schema = None

    def describe() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = openapi.describe(app, runtime, speak.schemas(), hear.schemas())
        return app.openapi_schema

    runtime.on_service(add_plugins)
    app.openapi = describe  # type: ignore[method-assign]
    return app
