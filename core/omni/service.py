"""Several pipelines behind one door: what the server, the CLI and plugins' routes talk to."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from omni.config import RecipeConfig
from omni.errors import BadRequest, ConfigError, ModelNotFound
from omni.live import LiveSession
from omni.pipeline import Pipeline, Progress
from omni.plugins import Plugins


class Service:
    """The recipes that are served, by name and alias."""

    def __init__(
        self, pipelines: Sequence[Pipeline], plugins: Plugins, aliases: Mapping[str, str] | None = None
    ) -> None:
        """``aliases``: further model names, each with the task kind that it stands for; they lead to the first served
        recipe of that kind."""
        self.plugins = plugins
        self.pipelines: dict[str, Pipeline] = {}
        self._names: dict[str, Pipeline] = {}
        self._aliases: dict[str, str] = {}
        for pipeline in pipelines:
            self.pipelines[pipeline.recipe.name] = pipeline
            for name in (pipeline.recipe.name, *pipeline.recipe.aliases):
                if name in self._names:
                    raise ConfigError(f"two served recipes are called {name!r}")
                self._names[name] = pipeline
        for name, kind in (aliases or {}).items():
            if name not in self._names and self.default(kind) is not None:
                self._aliases[name] = kind

    @classmethod
    async def launch(
        cls,
        configs: Sequence[RecipeConfig],
        plugins: Plugins,
        *,
        aliases: Mapping[str, str] | None = None,
        progress: Progress | None = None,
    ) -> Service:
        """Load every recipe; when one fails, those already up are closed and its error is raised."""
        pipelines: list[Pipeline] = []
        try:
            for config in configs:
                pipelines.append(await Pipeline.load(config, plugins, progress))
            return cls(pipelines, plugins, aliases)
        except BaseException:
            await asyncio.gather(*(pipeline.close() for pipeline in pipelines))
            raise

    def default(self, kind: str) -> Pipeline | None:
        """The first served recipe of a task kind."""
        return next((p for p in self.pipelines.values() if p.recipe.task.kind == kind), None)

    def names(self) -> dict[str, Pipeline]:
        """Every model name that is understood, recipes first, and where it leads."""
        names = dict(self._names)
        for alias, kind in self._aliases.items():
            pipeline = self.default(kind)
            assert pipeline is not None
            names[alias] = pipeline
        return names

    def named(self, model: str) -> Pipeline:
        """The pipeline of a recipe's name or an alias.

        Raises:
            ModelNotFound: nothing of that name is served; lists what is.
        """
        pipeline = self.names().get(model)
        if pipeline is None:
            raise ModelNotFound(
                f"the model {model[:100]!r} is not served here; served are: {self._served}", param="model"
            )
        return pipeline

    @property
    def _served(self) -> str:
        return ", ".join(self.pipelines) or "nothing"

    def find(self, model: str | None, kind: str) -> Pipeline:
        """The pipeline for a request's ``model`` (None: the first of the kind).

        Raises:
            ModelNotFound: nothing of that name is served; lists what is.
            BadRequest: the model exists and does another task.
        """
        pipeline = self.default(kind) if model is None else self.named(model)
        if pipeline is None:
            raise ModelNotFound(f"no served model does {kind}; served are: {self._served}", param="model")
        if pipeline.recipe.task.kind != kind:
            raise BadRequest(
                f"the model {model!r} does {pipeline.recipe.task.kind}, not {kind}",
                param="model",
                code="wrong_task",
            )
        return pipeline

    def live(self, model: str | None = None, **fields: Any) -> LiveSession:
        """A transcript of sound that is still coming, by a served model; see :class:`LiveSession`.

        Raises:
            ModelNotFound, BadRequest: see :meth:`find`; or the model gives none, or a field has a wrong value.
        """
        return LiveSession(self.find(model, "transcription"), **fields)

    @property
    def ready(self) -> bool:
        return bool(self.pipelines) and all(pipeline.ready for pipeline in self.pipelines.values())

    async def drain(self, timeout: float) -> int:
        """Finish what runs, for at most ``timeout`` seconds; returns how many requests were cut off."""
        return sum(await asyncio.gather(*(p.drain(timeout) for p in self.pipelines.values())))

    async def close(self) -> None:
        await asyncio.gather(*(pipeline.close() for pipeline in self.pipelines.values()))
