"""GET endpoints that say what is served: models, voices, health, metrics."""

from __future__ import annotations

import time
from typing import Any

from fastapi import APIRouter, Response

from omni import __version__
from omni.audio import FORMATS as AUDIO_FORMATS
from omni.errors import Unavailable
from omni.pipeline import Pipeline
from omni.plugins import params_model
from omni.recipe import Speech
from omni.server.fields import Parameters
from omni.server.metrics import CONTENT_TYPE
from omni.server.openai_names import listed_voices
from omni.server.runtime import Runtime
from omni.server.settings import ServerSettings
from omni.server.transcript_formats import FORMATS as TEXT_FORMATS
from omni.service import Service


def describe(name: str, pipeline: Pipeline, settings: ServerSettings, created: int) -> dict[str, Any]:
    """OpenAI's model object with what the model can do."""
    recipe, task = pipeline.recipe, pipeline.recipe.task
    limits: dict[str, Any] = {"max_requests": pipeline.limits.max_requests, "timeout_s": pipeline.limits.timeout_s}
    model: dict[str, Any] = {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "omni",
        "alias_of": recipe.name if name != recipe.name else None,
        "summary": recipe.summary,
        "license": recipe.license,
        "task": task.kind,
        "languages": list(task.languages) if task.languages is not None else None,
        "seed": task.seed,
        "limits": limits,
        "parameters": Parameters(recipe.name, params_model(recipe), ()).schema(),
    }
    if isinstance(task, Speech):
        limits |= {"max_characters": task.max_characters, "max_references": settings.max_references}
        model |= {
            "voices": listed_voices(task, settings),
            "formats": list(AUDIO_FORMATS),
            "sample_rate": task.sample_rate,
            "channels": task.channels,
            "cloning": task.cloning,
            "instructions": task.instructions,
        }
    else:
        limits |= {"max_seconds": task.max_seconds, "max_upload_mb": settings.max_upload_mb}
        timed = "segment" in task.timestamps
        model |= {
            "formats": [name for name in TEXT_FORMATS if timed or name not in ("srt", "vtt")],
            "timestamp_granularities": list(task.timestamps),
            "timestamp_languages": list(task.timestamp_languages) if task.timestamp_languages is not None else None,
            "live": task.live is not None,
            "prompt": task.prompt,
            "temperature": task.temperature,
        }
    return model


def routes(runtime: Runtime) -> APIRouter:
    """The router of everything that is only read."""
    router = APIRouter()
    created = int(time.time())
    settings = runtime.settings

    def speech_of(service: Service, model: str | None) -> Pipeline | None:
        if model is not None:
            return service.find(model, "speech")
        return service.default("speech")

    @router.get("/v1/", summary="What this server is")
    @router.get("/", include_in_schema=False)
    async def index() -> dict[str, Any]:
        return {"object": "server", "name": "omni", "version": __version__, "docs": "/docs", "models": "/v1/models"}

    @router.get("/v1/models", summary="Served recipes, then their aliases")
    async def models() -> dict[str, Any]:
        names = runtime.service.names()
        return {"object": "list", "data": [describe(name, p, settings, created) for name, p in names.items()]}

    @router.get("/v1/models/{name}", summary="One model and what it can do")
    async def model(name: str) -> dict[str, Any]:
        return describe(name, runtime.service.named(name), settings, created)

    @router.get("/v1/audio/models", summary="Models that speak")
    async def audio_models() -> dict[str, Any]:
        names = runtime.service.names()
        speaking = [name for name, pipeline in names.items() if pipeline.recipe.task.kind == "speech"]
        return {"models": [{"id": name, "name": name} for name in speaking]}

    @router.get("/v1/audio/voices", summary="Voices of a model; of the first that speaks by default")
    async def voices(model: str | None = None) -> dict[str, Any]:
        pipeline = speech_of(runtime.service, model)
        if pipeline is None:
            return {"voices": []}
        assert isinstance(pipeline.recipe.task, Speech)
        return {"voices": listed_voices(pipeline.recipe.task, settings)}

    @router.get("/health", summary="Whether the process is alive")
    async def health() -> dict[str, str]:
        return {"status": "alive", "state": runtime.state}

    @router.get("/ready", summary="Whether requests are taken; 503 while loading and draining, or when a stage is down")
    async def ready() -> dict[str, Any]:
        pipelines = runtime.service.pipelines
        if down := [why for pipeline in pipelines.values() if (why := pipeline.down) is not None]:
            raise Unavailable("; ".join(down), code="stage_down")
        return {"status": "ready", "models": list(pipelines)}

    @router.get("/metrics", summary="Prometheus metrics", response_class=Response)
    async def metrics() -> Response:
        return Response(runtime.metrics.render(), headers={"content-type": CONTENT_TYPE})

    return router
