"""What every scheduler is to the pipeline, and what all five share."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Protocol

from omni.errors import StageFailed
from omni.schedulers.worker import Mailbox, Workers, as_omni_error, in_thread
from omni.stages import Stage
from omni.transports.base import Outlet
from omni.transports.inproc import Edge


@dataclass
class StageStats:
    """A snapshot. ``streams``: requests that are open here; ``queued``: items that wait; ``running``: items that
    are worked on now. Since start: ``items_total`` items were taken in (AR: steps were given out), in
    ``steps_total`` calls of the stage's method."""

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
        """Take a request: its items come from ``sources``, what the stage makes goes to ``outlet``. Nothing has been
        put into the sources yet."""

    def cancel(self, request_id: str) -> None:
        """Forget a request; its work stops at the next step and its state is freed. Unknown ids are ignored."""

    def stats(self) -> StageStats: ...

    @property
    def down(self) -> str | None:
        """Why the stage can do no work any more, for good; None while it can."""

    async def close(self) -> None:
        """Stop the threads and close the stage; requests that are still open are cancelled. A stage with a thread that
        does not come back is closed when it does, for which nobody waits."""


class Stream:
    """One request inside a scheduler. ``busy``: work for it is under way, and no other may start."""

    __slots__ = ("alive", "busy", "edge", "outlet", "request_id", "sent", "sources")

    def __init__(self, request_id: str, sources: Mapping[str, Edge], outlet: Outlet) -> None:
        self.request_id = request_id
        self.sources = sources
        self.edge = next(iter(sources.values()))
        self.outlet = outlet
        self.alive = True
        self.busy = False
        self.sent = 0


class StreamsByRequest:
    """Common ground of the five schedulers: streams by request, outputs, errors, cancelling."""

    input_capacity = 1
    stream_type: ClassVar[type[Stream]] = Stream

    def __init__(self, stage: Stage[Any, Any]) -> None:
        self.name = stage.context.stage
        self._stage = stage
        self._output_type = stage.output_type
        self._streams: dict[str, Any] = {}
        self._stats = StageStats()

    def open(self, request_id: str, sources: Mapping[str, Edge], outlet: Outlet) -> None:
        stream = self.stream_type(request_id, sources, outlet)
        self._streams[request_id] = stream
        pump = partial(self._pump, stream)
        for edge in sources.values():
            edge.on_item = pump
        outlet.on_room(pump)

    def _pump(self, stream: Any) -> None:
        """Something has changed for a stream: start what can start. Called as often as one likes."""
        raise NotImplementedError

    def _put(self, stream: Stream, item: Any) -> None:
        """Send an output on; one of another type than the stage declares ends the stream."""
        if type(item) is self._output_type:
            stream.sent += 1
            stream.outlet.put(item)
        else:
            declared = self._output_type.__name__
            self._fail(stream, StageFailed(f"stage {self.name!r} gave {type(item).__name__}, it declares {declared}"))

    def _finish(self, stream: Stream) -> None:
        self._release(stream)
        stream.outlet.end(stream.sent)

    def _fail(self, stream: Stream, error: BaseException) -> None:
        if stream.alive:
            self._release(stream)
            stream.outlet.fail(as_omni_error(self.name, error))

    def _release(self, stream: Stream) -> None:
        stream.alive = False
        for edge in stream.sources.values():
            edge.close()
        self._streams.pop(stream.request_id, None)
        self._discard(stream)

    def _discard(self, stream: Any) -> None:
        """Free what the stage holds for a stream that is no longer alive. Called when it ends, and again when the work
        that was under way then has come back."""

    def cancel(self, request_id: str) -> None:
        stream = self._streams.get(request_id)
        if stream is not None:
            self._release(stream)

    def stats(self) -> StageStats:
        queued = sum(edge.queued for stream in self._streams.values() for edge in stream.sources.values())
        return replace(self._stats, streams=len(self._streams), queued=queued)

    @property
    def down(self) -> str | None:
        return None

    async def close(self) -> None:
        for request_id in list(self._streams):
            self.cancel(request_id)
        await in_thread(self._shut, f"{self.name}-close")

    def _shut(self) -> None:
        """In a thread, when no work is under way any more."""
        self._stage.close()


class ThreadedScheduler(StreamsByRequest):
    """A scheduler whose stage works in threads."""

    def __init__(self, stage: Stage[Any, Any], mailbox: Mailbox, workers: int) -> None:
        super().__init__(stage)
        self._mail = mailbox
        self._workers = Workers(self.name, workers, mailbox)

    async def close(self) -> None:
        for request_id in list(self._streams):
            self.cancel(request_id)
        if await self._workers.close():
            await super().close()
        else:
            self._workers.when_gone(self._shut)


class BatchingScheduler(ThreadedScheduler):
    """A scheduler whose batches span requests; ``workers`` of them run at once."""

    def __init__(self, stage: Stage[Any, Any], mailbox: Mailbox, workers: int, threads: int) -> None:
        super().__init__(stage, mailbox, threads)
        self._loop = asyncio.get_running_loop()
        self._free = workers
        self._scheduled = False

    def _dispatch_soon(self) -> None:
        """Once per turn of the loop, so that items which arrive together share a batch."""
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._dispatch_now)

    def _dispatch_now(self) -> None:
        self._scheduled = False
        self._dispatch()

    def _dispatch(self) -> None:
        """Form batches for the workers that are free."""
        raise NotImplementedError
