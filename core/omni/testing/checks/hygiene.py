"""A recipe's manners: what it declares, how it loads, rests and ends."""

from __future__ import annotations

import asyncio
import gc
import json
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from typing import Any

from pydantic import BaseModel

from omni.loading import check as check_recipe
from omni.loading import request_type
from omni.plugins import params_model
from omni.stages import Encoder, Preprocess
from omni.testing.checks.base import check
from omni.testing.clips import long_request
from omni.testing.kit import Kit, NotApplicable, fail
from omni.testing.parameters import declared_fields
from omni.testing.tap import Tap

HEAVY = frozenset(
    (
        *("torch", "tensorflow", "jax", "onnxruntime", "ctranslate2", "transformers", "sglang", "vllm", "ray"),
        *("librosa", "scipy", "sklearn", "pandas"),
    )
)

_LISTING = """
import importlib, json, sys
module, _, attribute = sys.argv[1].partition(":")
plugin = importlib.import_module(module)
for part in filter(None, attribute.split(".")):
    plugin = getattr(plugin, part)
plugin.omni_recipes()
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""


@check("the recipe says what it is and under which licence; its stages, options, edges and samples fit together")
async def recipe_is_complete(kit: Kit) -> None:
    from omni.testing.checks import CHECKS

    recipe = kit.recipe
    for name, value in (("summary", recipe.summary), ("license", recipe.license)):
        if value.strip().strip("-?.").lower() in ("", "todo", "tbd", "unknown", "none"):
            fail(f"{name} of recipe {recipe.name!r} says nothing: {value!r}")
    check_recipe(kit.config())
    model = params_model(recipe)
    if model is not None and not (isinstance(model, type) and issubclass(model, BaseModel)):
        fail(f"task.params {recipe.task.params!r} is no pydantic model")
    wanted = request_type(recipe)
    for request in (*kit.samples.requests, *kit.samples.refused):
        if not isinstance(request, wanted):
            fail(f"the samples hold a {type(request).__name__}; this recipe takes {wanted.__name__}")
    fields = declared_fields(recipe)
    for what, names, known in (
        ("skip", kit.samples.skip, [c.name for c in CHECKS]),
        ("exempt", kit.samples.exempt, fields),
        ("effects", kit.samples.effects, fields),
    ):
        for name in names:
            if name not in known:
                fail(f"samples.{what} names {name!r}, which does not exist; there are: {', '.join(known)}")
    for name, reason in {**kit.samples.skip, **kit.samples.exempt}.items():
        if len(reason.split()) < 3:
            fail(f"samples give no reason why {name!r} is left out: {reason!r}")


@check("listing the plugin's recipes imports no torch, no engine and no model code")
async def listing_is_light(kit: Kit) -> None:
    if kit.recipe.name not in kit.plugins.recipes:
        raise NotApplicable("the recipe was handed over as an object; no plugin declares it")
    owner = kit.plugins.owner(kit.recipe.name)
    (module,) = [plugin.module for plugin in kit.plugins.plugins if plugin.name == owner]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", _LISTING, module],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment,
        check=False,
    )
    if done.returncode:
        fail(f"listing the recipes of {module!r} in a new process failed:\n{done.stderr.strip()[-2000:]}")
    heavy = sorted(HEAVY.intersection(json.loads(done.stdout.splitlines()[-1])))
    if heavy:
        fail(f"importing {module!r} and listing its recipes imports {', '.join(heavy)}: import them in Stage.load")


@check("every stage ends each stream once, and gives one item or many as its StageSpec says")
async def stages_stream_as_declared(kit: Kit) -> None:
    await kit.outputs()
    pipeline = await kit.pipeline()
    with Tap(pipeline) as tap:
        for i, request in enumerate([*kit.requests, long_request(kit.requests, kit.samples.long_seconds)]):
            await kit.collect(pipeline, pipeline.submit(request, f"sample-{i}"))
    for stage in check_recipe(kit.config()):
        name = stage.spec.name
        seen = [passage for (_, at), passage in tap.passages.items() if at == name]
        if any(p.ends + p.fails != 1 or p.late for p in seen):
            fail(f"stage {name!r} did not end each of its streams exactly once")
        if stage.spec.stream and all(p.put <= 1 for p in seen):
            fail(f"stage {name!r} is declared with stream=True and gave one item for every sample")
        if not stage.spec.stream and issubclass(stage.cls, Preprocess | Encoder):
            many = next((p for p in seen if p.put != p.received), None)
            if many is not None:
                fail(f"stage {name!r} gave {many.put} items for {many.received}: declare it with stream=True")


@check("when nothing is asked, nothing runs: no stage holds work and the process uses no CPU")
async def idle_is_idle(kit: Kit) -> None:
    pipeline = await kit.pipeline()
    await kit.outcome(kit.requests[0], pipeline)
    if left := await kit.idle(pipeline, kit.samples.cancel_seconds):
        fail(f"a request has ended and there is still work: {left}")
    share = 1.0
    for _ in range(4):  # something else in the process may work for a moment
        wall, cpu = time.perf_counter(), time.process_time()
        await asyncio.sleep(0.25)
        share = (time.process_time() - cpu) / (time.perf_counter() - wall)
        if share < 0.1:
            return
    fail(f"the idle pipeline keeps {share:.0%} of a CPU busy")


@check("closing the pipeline ends every thread and every process that its stages started")
async def close_ends_threads(kit: Kit) -> None:
    # Once before, so that what a library starts for the life of the process does not count.
    await kit.outcome(kit.requests[0], await kit.pipeline())
    await kit.close()
    before = {*threading.enumerate(), *multiprocessing.active_children()}
    await kit.outcome(kit.requests[0], await kit.pipeline())
    await kit.close()
    deadline = time.perf_counter() + 2.0
    while left := _started_since(before):
        gc.collect()  # a library may tie a thread to an object
        if time.perf_counter() > deadline:
            fail(f"still alive after the pipeline was closed: {', '.join(left)}: end them in Stage.close")
        await asyncio.sleep(0.01)


def _started_since(before: set[Any]) -> list[str]:
    """Names of threads and processes; the event loop's own pool is not the recipe's."""
    now: list[Any] = [*threading.enumerate(), *multiprocessing.active_children()]
    return [t.name for t in now if t not in before and t.is_alive() and not t.name.startswith("asyncio_")]


HYGIENE = (
    recipe_is_complete,
    listing_is_light,
    stages_stream_as_declared,
    idle_is_idle,
    close_ends_threads,
)
