"""Stages in this process: loaded in a thread, run by threads of their own."""

from __future__ import annotations

import asyncio
from typing import Any

from omni.engines.base import Engine
from omni.errors import ConfigError, MissingDependency, OmniError
from omni.executors.base import StageLaunch
from omni.schedulers.base import Scheduler
from omni.schedulers.batch import BatchScheduler
from omni.schedulers.collect import CollectScheduler
from omni.schedulers.continuous import ContinuousScheduler
from omni.schedulers.pool import PoolScheduler
from omni.schedulers.stream import StreamScheduler
from omni.schedulers.worker import Mailbox
from omni.stages import AR, Aggregator, Decoder, Encoder, Preprocess, Stage


class InprocessExecutor:
    name = "inprocess"

    async def launch(self, launch: StageLaunch, mailbox: Mailbox) -> Scheduler:
        stage = launch.cls(launch.options, launch.context)
        try:
            engine = await asyncio.to_thread(_load, stage, launch)
        except BaseException:
            await asyncio.to_thread(stage.close)
            raise
        return scheduler_for(stage, mailbox, engine)


def _load(stage: Stage[Any, Any], launch: StageLaunch) -> Engine | None:
    """In a thread: load the stage, and start its engine if it is an AR stage."""
    name = launch.context.stage
    try:
        stage.load()
        if not isinstance(stage, AR):
            return None
        assert launch.engine is not None
        engine = launch.engine(stage.model(), launch.engine_options or {})
        engine.start()
        return engine
    except OmniError:
        raise
    except ImportError as error:
        raise missing_dependency(launch, error) from error
    except Exception as error:
        raise ConfigError(f"stage {name!r} did not load: {type(error).__name__}: {error}") from error


def missing_dependency(launch: StageLaunch, error: ImportError) -> MissingDependency:
    """Name the package that a stage's import missed and the pip line that brings it."""
    recipe = launch.context.recipe
    return MissingDependency(
        f"stage {launch.context.stage!r} of recipe {recipe.name!r} needs the package {error.name or error}: "
        f"{recipe.pip_line()}"
    )


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
