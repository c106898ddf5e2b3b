"""What a check is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from omni.testing.kit import Kit, NotApplicable

Work = Callable[[Kit], Awaitable[None]]


@dataclass(frozen=True)
class Check:
    """``proves`` is one sentence on what holds when it passes. ``task`` is the kind of recipe that it is for (None:
    any). ``work`` raises :class:`ConformanceFailure`."""

    name: str
    proves: str
    task: str | None
    work: Work

    def __call__(self, kit: Kit) -> None:
        """Run it.

        Raises:
            ConformanceFailure: the recipe does not keep the promise.
            NotApplicable: the check says nothing about this recipe, or its samples say to skip it; holds the reason.
        """
        if self.task not in (None, kit.recipe.task.kind):
            raise NotApplicable(f"for {self.task} recipes only")
        if self.name in kit.samples.skip:
            raise NotApplicable(f"skipped by the recipe's samples: {kit.samples.skip[self.name]}")

        async def work() -> None:
            await self.work(kit)

        kit.run(work())


def check(proves: str, task: str | None = None) -> Callable[[Work], Check]:
    """Make a check of a coroutine function; the function's name is the check's."""

    def make(work: Work) -> Check:
        return Check(getattr(work, "__name__", "check"), proves, task, work)

    return make


async def turns(count: int) -> None:
    """Let the loop go round ``count`` times."""
    for _ in range(count):
        await asyncio.sleep(0)
