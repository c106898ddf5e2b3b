"""How loading looks: a bar on a terminal, plain lines anywhere else. Both on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

    from omni.config import RecipeConfig


class Lines:
    """One line for every step, with the seconds since the start."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._start = time.monotonic()

    def __call__(self, recipe: str, what: str, state: str) -> None:
        seconds = time.monotonic() - self._start
        print(f"[{seconds:6.2f} s] {recipe}: {what}: {state}", file=self._file, flush=True)

    def close(self) -> None:
        """Nothing is open between lines."""


class Bars:
    """One bar a recipe that fills as its stages come up.

    A bar is drawn only between a recipe's first stage and its last: while weights are fetched the terminal belongs to
    the Hub's own bars.
    """

    def __init__(self, stages: dict[str, int]) -> None:
        self._stages = stages
        self._loading: list[str] = []
        self._bar: tuple[RichProgress, TaskID] | None = None

    def __call__(self, recipe: str, what: str, state: str) -> None:
        if what == "weights":
            return
        if self._bar is None:
            self._bar = self._open(recipe)
        progress, task = self._bar
        if state == "ready":
            self._loading.remove(what)
            progress.advance(task)
        else:
            self._loading.append(what)
        progress.update(task, stage=", ".join(self._loading))
        if progress.finished:
            self.close()

    def _open(self, recipe: str) -> tuple[RichProgress, TaskID]:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("stages"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[stage]}"),
        )
        progress = Progress(*columns, console=Console(stderr=True))
        progress.start()
        return progress, progress.add_task(recipe, total=self._stages[recipe], stage="")

    def close(self) -> None:
        """Take the bar off the terminal's hands; safe to call at any time."""
        if self._bar is not None:
            self._bar[0].stop()
            self._bar = None
            self._loading.clear()


def reporter(configs: Sequence[RecipeConfig]) -> Lines | Bars:
    """What fits stderr."""
    if sys.stderr.isatty():
        return Bars({config.recipe.name: len(config.recipe.stages) for config in configs})
    return Lines(sys.stderr)
