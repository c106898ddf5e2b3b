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
from omni.schedulers.worker import Mailbox, log
from omni.stages import AR, Aggregator, Decoder, Encoder, Preprocess, Stage


class InprocessExecutor:
    name = "inprocess"

    async def launch(self, launch: StageLaunch, mailbox: Mailbox) -> Scheduler:
        stage, engine = await asyncio.to_thread(load, launch)
        return scheduler_for(stage, mailbox, engine)


def load(launch: StageLaunch) -> tuple[Stage[Any, Any], Engine | None]:
    """In a thread: make a stage, load it, and start its engine if it is an AR stage. One that fails is closed.

    Raises:
        OmniError: typed, naming the stage.
    """
    stage: Stage[Any, Any] | None = None
    try:
        stage = launch.cls(launch.options, launch.context)
        stage.load()
        return stage, _engine_of(stage, launch)
    except BaseException as error:
        if stage is not None:
            _close_after_failure(stage)
        if isinstance(error, OmniError) or not isinstance(error, Exception):
            raise
        if isinstance(error, ImportError):
            raise missing_dependency(launch, error) from error
        what = f"stage {launch.context.stage!r} of recipe {launch.context.recipe.name!r}"
        raise ConfigError(f"{what} did not load: {type(error).__name__}: {error}") from error


def _engine_of(stage: Stage[Any, Any], launch: StageLaunch) -> Engine | None:
    if not isinstance(stage, AR):
        return None
    assert launch.engine is not None
    engine = launch.engine(stage.model(), launch.engine_options or {})
    engine.start()
    return engine


def _close_after_failure(stage: Stage[Any, Any]) -> None:
    try:
        stage.close()
    except Exception:  # noqa: BLE001 - the reason why it did not load is the one to show
        log.exception("stage %s failed to close after it had failed to load", stage.context.stage)


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
