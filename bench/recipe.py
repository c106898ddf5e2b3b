"""A speech recipe as a server runs it, without HTTP: when each stream is first heard, and whether all keep pace."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Sequence

from omni import SpeechRequest
from omni.config import configure
from omni.pipeline import Pipeline
from omni.plugins import Plugins

TEXT = "The river was low that summer, and the boats lay tilted on the mud until the evening tide came in."


def speak(name: str, sets: Sequence[str], loads: Sequence[int], frames: int, voice: str = "") -> dict[str, float]:
    """For each number of streams at once: median and worst milliseconds to the first samples, and seconds of work per
    second of speech of each stream (the real-time factor). A round before each is not counted."""
    return asyncio.run(_speak(name, sets, loads, frames, voice))


async def _speak(name: str, sets: Sequence[str], loads: Sequence[int], frames: int, voice: str) -> dict[str, float]:
    plugins = Plugins.load()
    (config,) = configure([plugins.recipe(name)], sets=sets)
    pipeline = await Pipeline.load(config, plugins)
    rate = config.recipe.task.sample_rate

    async def one(seed: int) -> tuple[float, float]:
        """Seconds to the first samples, and of speech."""
        request = SpeechRequest(text=TEXT, voice=voice, seed=seed, params={"max_new_tokens": frames})
        start = time.perf_counter()
        first, samples = 0.0, 0
        async with pipeline.submit(request) as stream:
            async for chunk in stream:
                if len(chunk.samples) and not samples:
                    first = time.perf_counter() - start
                samples += len(chunk.samples)
        return first, samples / rate

    figures: dict[str, float] = {}
    try:
        for load in loads:
            for attempt in range(2):
                start = time.perf_counter()
                found = await asyncio.gather(*(one(1000 * load + 100 * attempt + i) for i in range(load)))
                seconds = time.perf_counter() - start
            waits = [1e3 * first for first, _ in found]
            figures[f"recipe_{load}_first_ms"] = statistics.median(waits)
            figures[f"recipe_{load}_first_worst_ms"] = max(waits)
            figures[f"recipe_{load}_rtf"] = seconds / statistics.mean(spoken for _, spoken in found)
    finally:
        await pipeline.close()
    return figures
