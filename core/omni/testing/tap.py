"""Watching and disturbing what leaves the stages of a running pipeline."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from omni.errors import OmniError
from omni.pipeline import Pipeline
from omni.schedulers.base import Scheduler
from omni.transports.base import Outlet
from omni.transports.inproc import Edge


@dataclass
class Passage:
    """One request at one stage: its edges into it, and what came out."""

    sources: list[Edge]
    put: int = 0
    ends: int = 0
    fails: int = 0
    late: int = 0

    @property
    def received(self) -> int:
        """Items that went in, over all edges."""
        return sum(edge.received for edge in self.sources)


@dataclass
class Fault:
    """Makes what ``stage`` gives for ``request_id`` end in ``error`` in place of its first item."""

    request_id: str
    stage: str
    error: OmniError


class _Tapped:
    """An outlet that counts and, for the request with the fault, fails."""

    def __init__(self, outlet: Outlet, passage: Passage, fault: OmniError | None) -> None:
        self._outlet = outlet
        self._passage = passage
        self._fault = fault

    @property
    def room(self) -> int:
        return self._outlet.room

    def on_room(self, wake: Callable[[], None]) -> None:
        self._outlet.on_room(wake)

    def put(self, item: Any) -> None:
        passage = self._passage
        passage.put += 1
        passage.late += bool(passage.ends or passage.fails)
        if self._fault is not None:
            self.fail(self._fault)
        else:
            self._outlet.put(item)

    def end(self, count: int) -> None:
        self._passage.ends += 1
        self._outlet.end(count)

    def fail(self, error: OmniError) -> None:
        self._passage.fails += 1
        self._outlet.fail(error)


@dataclass
class Tap:
    """Used as a context manager: in between, every request that is submitted is watched."""

    pipeline: Pipeline
    fault: Fault | None = None
    passages: dict[tuple[str, str], Passage] = field(default_factory=dict)

    def __enter__(self) -> Tap:
        for name, scheduler in self.pipeline.schedulers.items():
            self._wrap(name, scheduler)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for scheduler in self.pipeline.schedulers.values():
            del scheduler.open  # the instance's own, so the class's is seen again

    def _wrap(self, stage: str, scheduler: Scheduler) -> None:
        inner = scheduler.open

        def tapped(request_id: str, sources: Mapping[str, Edge], outlet: Outlet) -> None:
            passage = self.passages[(request_id, stage)] = Passage(list(sources.values()))
            fault = self.fault
            hit = fault is not None and (fault.request_id, fault.stage) == (request_id, stage)
            inner(request_id, sources, _Tapped(outlet, passage, fault.error if fault is not None and hit else None))

        setattr(scheduler, "open", tapped)  # noqa: B010 - mypy forbids assigning to a method
