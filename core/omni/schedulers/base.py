"""What every scheduler is to the pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from omni.schedulers.worker import Mailbox, Workers, as_omni_error
from omni.stages import Stage
from omni.transports.base import Outlet
from omni.transports.inproc import Edge


@dataclass
class StageStats:
    """A snapshot. ``streams``: requests that are open here; ``queued``: items that wait; ``running``: items that
    are worked on now; the totals count since start."""

    streams: int = 0
    queued: int = 0
    running: int = 0
    items_total: int = 0
    steps_total: int = 0
    cache_hits_total: int = 0
    cache_bytes: int = 0


class Scheduler(Protocol):
    """Runs one stage for many requests. All methods are called on the event loop's thread."""

    input_capacity: int
    """Items that an edge into this stage must hold at least."""

    def open(self, request_id: str, sources: Mapping[str, Edge], outlet: Outlet) -> None:
        """Take a request: its items come from ``sources``, what the stage makes goes to ``outlet``."""

    def cancel(self, request_id: str) -> None:
        """Forget a request; its work stops at the next step and its state is freed. Unknown ids are ignored."""

    def stats(self) -> StageStats: ...

    async def close(self) -> None:
        """Stop the threads and close the stage; open requests must have been cancelled."""


class Stream:
    """One request inside a scheduler."""

    __slots__ = ("alive", "busy", "edge", "outlet", "request_id")

    def __init__(self, request_id: str, edge: Edge, outlet: Outlet) -> None:
        self.request_id = request_id
        self.edge = edge
        self.outlet = outlet
        self.alive = True
        self.busy = False


class ThreadedScheduler:
    """Common ground of the schedulers that work in threads: streams by request, errors, closing."""

    input_capacity = 1

    def __init__(self, stage: Stage[Any, Any], mailbox: Mailbox, workers: int) -> None:
        self.name = stage.context.stage
        self._stage = stage
        self._mail = mailbox
        self._workers = Workers(self.name, workers)
        self._streams: dict[str, Any] = {}
        self._stats = StageStats()

    def _finish(self, stream: Stream) -> None:
        self._release(stream)
        stream.outlet.end()

    def _fail(self, stream: Stream, error: BaseException) -> None:
        if stream.alive:
            self._release(stream)
            stream.outlet.fail(as_omni_error(self.name, error))

    def _release(self, stream: Stream) -> None:
        stream.alive = False
        stream.edge.close()
        self._streams.pop(stream.request_id, None)
        self._discard(stream)

    def _discard(self, stream: Any) -> None:
        """Free what the stage holds for a stream that has ended; called once."""

    def cancel(self, request_id: str) -> None:
        stream = self._streams.get(request_id)
        if stream is not None:
            self._release(stream)

    def stats(self) -> StageStats:
        self._stats.streams = len(self._streams)
        self._stats.queued = sum(len(stream.edge.items) for stream in self._streams.values())
        return self._stats

    async def close(self) -> None:
        import asyncio

        for request_id in list(self._streams):
            self.cancel(request_id)
        await asyncio.to_thread(self._workers.close)
        await asyncio.to_thread(self._stage.close)
