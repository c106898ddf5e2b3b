"""What tests of schedulers share: an edge to feed, an edge to read, gates, and waiting without guessing at times."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from omni import Message, OmniError, Recipe, Speech, StageContext, StageSpec
from omni.schedulers.base import Scheduler
from omni.schedulers.worker import Mailbox
from omni.stages import Stage
from omni.transports.inproc import Edge

RECIPE = Recipe(
    name="toy",
    summary="-",
    license="-",
    task=Speech(sample_rate=8000),
    stages=(StageSpec("toy", "toy_stages:Nothing"),),
)


class Item(Message):
    value: int = 0
    text: str = ""


def make(cls: type[Stage[Any, Any]], **options: Any) -> Any:
    """A stage as the pipeline makes it."""
    return cls(cls.Options.model_validate(options), StageContext(RECIPE, "toy"))


def mailbox() -> Mailbox:
    return Mailbox(asyncio.get_running_loop())


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(30):
            await test()

    asyncio.run(bounded())


class Gate:
    """A place in a stage's code at which a test holds it: ``passed`` in the stage, ``reached`` and ``open`` in the
    test. ``count`` is how often it has been reached."""

    def __init__(self) -> None:
        self.count = 0
        self._reached = threading.Semaphore(0)
        self._open = threading.Event()

    def passed(self) -> None:
        self.count += 1
        self._reached.release()
        assert self._open.wait(20)

    async def reached(self) -> None:
        assert await asyncio.to_thread(self._reached.acquire, timeout=20)

    def open(self) -> None:
        self._open.set()

    def shut(self) -> None:
        self._open.clear()


class Request:
    """A request at one scheduler: puts items in, and reads what comes out when it is told to."""

    def __init__(self, scheduler: Scheduler, name: str = "r", capacity: int = 16) -> None:
        self.source = Edge(64)
        self.output = Edge(capacity)
        self._news = asyncio.Event()
        self.output.on_item = self._news.set
        self.scheduler = scheduler
        self.name = name
        scheduler.open(name, {"request": self.source}, self.output)

    def put(self, *items: Any) -> Request:
        for item in items:
            self.source.put(Item(value=item) if isinstance(item, int) else item)
        return self

    def end(self) -> Request:
        self.source.end(self.source.received)
        return self

    def cancel(self) -> None:
        self.scheduler.cancel(self.name)

    async def take(self) -> Any:
        """The next item; raises the error, gives None at the end."""
        while not self.output.items:
            if self.output.error is not None:
                raise self.output.error
            if self.output.ended:
                return None
            self._news.clear()
            await self._news.wait()
        return self.output.take()

    async def rest(self) -> list[int]:
        values = []
        while (item := await self.take()) is not None:
            values.append(item.value)
        return values

    async def error(self) -> OmniError:
        """The error that the stream ends in."""
        try:
            got = await self.rest()
        except OmniError as error:
            return error
        raise AssertionError(f"no error, but {got}")


async def turns(count: int = 8) -> None:
    """Let everything run that needs nothing but the loop."""
    for _ in range(count):
        await asyncio.sleep(0)


async def quiet(scheduler: Any) -> None:
    """Until no job has been in a thread or on its way back for a while of the loop: nothing more happens by itself."""
    calm, steps = 0, -1
    while calm < 10:
        await asyncio.sleep(0)
        moved = scheduler._workers.pending or steps != scheduler._stats.steps_total
        calm, steps = 0 if moved else calm + 1, scheduler._stats.steps_total


async def until(condition: Callable[[], Any]) -> None:
    """Until something becomes true that the loop alone brings about."""
    while not condition():
        await asyncio.sleep(0)


def is_idle(scheduler: Scheduler) -> bool:
    stats = scheduler.stats()
    return not (stats.streams or stats.queued or stats.running)


def stage_threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("omni-")}


@contextmanager
def threads_as_before() -> Iterator[None]:
    before = stage_threads()
    yield
    assert stage_threads() == before
