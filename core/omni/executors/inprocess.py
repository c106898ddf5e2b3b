"""Stages in this process: loaded in a thread, run by threads of their own."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec

from omni.engines.base import Engine, ModelSource
from omni.errors import ConfigError, MissingDependency, OmniError, from_wire
from omni.executors.base import StageLaunch
from omni.schedulers.base import Scheduler
from omni.schedulers.batch import BatchScheduler
from omni.schedulers.collect import CollectScheduler
from omni.schedulers.continuous import ContinuousScheduler
from omni.schedulers.pool import PoolScheduler
from omni.schedulers.stream import StreamScheduler
from omni.schedulers.worker import Mailbox, in_thread, log
from omni.stages import AR, Aggregator, Decoder, Encoder, Preprocess, Stage


class InprocessExecutor:
    name = "inprocess"

    async def launch(self, launch: StageLaunch, mailbox: Mailbox) -> Scheduler:
        name = f"{launch.context.stage}-load"
        stage, engine = await in_thread(partial(load, launch), name, lambda loaded: close(*loaded))
        return scheduler_for(stage, mailbox, engine)


def load(launch: StageLaunch) -> tuple[Stage[Any, Any], Engine | None]:
    """In a thread: make a stage, load it, and start its engine if it is an AR stage. One that fails is closed.

    Raises:
        OmniError: typed, naming the stage.
    """
    stage: Stage[Any, Any] | None = None
    engine: Engine | None = None
    try:
        stage = launch.cls(launch.options, launch.context)
        stage.load()
        if isinstance(stage, AR):
            assert launch.engine is not None
            model = _source(stage) if getattr(launch.engine, "takes_source", False) else stage.model()
            engine = launch.engine(model, launch.engine_options or {})
            engine.start()
            stage.max_tokens = engine.max_tokens
        return stage, engine
    except BaseException as error:
        close(stage, engine)
        if not isinstance(error, Exception):
            raise
        raise named(launch, error) from error


def _source(stage: AR[Any, Any]) -> ModelSource:
    source = stage.source()
    if source is None:
        raise ConfigError("the engine builds the model in processes of its own, and this stage has no source() for it")
    return source


def named(launch: StageLaunch, error: Exception) -> OmniError:
    """What a stage raised when it was loaded as a typed error that names it."""
    recipe = launch.context.recipe
    what = f"stage {launch.context.stage!r} of recipe {recipe.name!r}"
    if isinstance(error, OmniError):
        return from_wire(msgspec.structs.replace(error.to_wire(), message=f"{what}: {error.message}"))
    if isinstance(error, ImportError):
        return MissingDependency(f"{what} needs the package {error.name or error}: {recipe.pip_line()}")
    return ConfigError(f"{what} did not load: {type(error).__name__}: {error}")


def close(stage: Stage[Any, Any] | None, engine: Engine | None) -> None:
    """Close what has come up of a stage that nobody will use; what goes wrong then is logged."""
    for part in (engine, stage):
        try:
            if part is not None:
                part.close()
        except Exception:  # noqa: BLE001 - there is a better reason to show, or nobody to show it to
            log.exception("a stage that is not used failed to close")


def scheduler_for(stage: Stage[Any, Any], mailbox: Mailbox, engine: Engine | None = None) -> Scheduler:
    """The scheduler fitted to a stage's kind."""
    match stage:
        case Preprocess():
            return PoolScheduler(stage, mailbox)
        case Encoder():
            return BatchScheduler(stage, mailbox)
        case Decoder():
            return StreamScheduler(stage, mailbox)
        case Aggregator():
            return CollectScheduler(stage)
        case AR():
            assert engine is not None
            return ContinuousScheduler(stage, engine, mailbox)
        case _:
            raise ConfigError(f"{type(stage).__name__} is none of the five kinds of stage")
