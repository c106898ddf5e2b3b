"""What tests of the pipeline share: a pipeline of toy stages, requests, and looking whether it is at rest."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import toy_stages
from harness import Gate, quiet
from toy_stages import CHAIN, EVENTS

from omni import SpeechRequest
from omni.config import RecipeConfig
from omni.pipeline import Pipeline
from omni.plugins import Plugins
from omni.request_stream import RequestStream


@contextmanager
def fresh() -> Iterator[None]:
    """No events yet, and a gate that is shut until the end."""
    EVENTS.clear()
    toy_stages.GATE = Gate()
    yield
    toy_stages.GATE.open()


@asynccontextmanager
async def pipeline(*stages: str, plugins: Plugins | None = None, **settings: Any) -> AsyncIterator[Pipeline]:
    config = RecipeConfig(toy_stages.recipe(*(stages or CHAIN)))
    for path, value in settings.items():
        config.set(path.replace("__", "."), value, "test")
    loaded = await Pipeline.load(config, plugins or Plugins.load([]))
    try:
        yield loaded
    finally:
        await loaded.close()


def submit(pipe: Pipeline, text: str, **fields: Any) -> RequestStream:
    return pipe.submit(SpeechRequest(text=text), **fields)


async def read(stream: RequestStream) -> list[float]:
    async with stream:
        return [chunk.samples[0].item() async for chunk in stream]


def idle(pipe: Pipeline) -> bool:
    stats = pipe.stats()
    return not stats.active and not any(s.streams or s.queued or s.running for s in stats.stages.values())


async def settle(pipe: Pipeline) -> None:
    for _ in pipe.schedulers:
        for scheduler in pipe.schedulers.values():
            if hasattr(scheduler, "_workers"):
                await quiet(scheduler)
