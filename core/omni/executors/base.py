"""Where stages live."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from omni.engines.base import EngineFactory
from omni.schedulers.base import Scheduler
from omni.schedulers.worker import Mailbox
from omni.stages import Stage, StageContext, StageOptions


@dataclass(frozen=True)
class StageLaunch:
    """All that is needed to bring one stage up somewhere. ``engine`` is set for AR stages only."""

    cls: type[Stage[Any, Any]]
    options: StageOptions
    context: StageContext
    engine: EngineFactory | None = None
    engine_options: dict[str, Any] | None = None


class Executor(Protocol):
    """Brings stages up and gives each a scheduler that the pipeline talks to."""

    name: str

    async def launch(self, launch: StageLaunch, mailbox: Mailbox) -> Scheduler:
        """Load the stage; returns when it is ready. Raises a typed error that names the stage."""
