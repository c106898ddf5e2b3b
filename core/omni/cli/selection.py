"""Which recipes a command works with, and what is set on them: the options that several commands share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import click

from omni.config import RecipeConfig, configure, read_file
from omni.errors import ConfigError
from omni.plugins import Plugins
from omni.recipe import Recipe

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Selection:
    """What ``--recipe --weights --set --engine --config`` said, as it was written."""

    recipes: tuple[str, ...] = ()
    weights: tuple[str, ...] = ()
    sets: tuple[str, ...] = ()
    engine: str | None = None
    file: Path | None = None
    content: Mapping[str, Any] = field(default_factory=lambda: {"server": {}, "recipes": {}})

    @classmethod
    def read(
        cls,
        recipes: Sequence[str],
        weights: Sequence[str],
        sets: Sequence[str],
        engine: str | None,
        config_file: Path | None,
    ) -> Selection:
        """From the parameters that :func:`selection_options` makes.

        Raises:
            ConfigError: the file cannot be read, or holds other keys than ``server`` and ``recipes``.
        """
        if config_file is None:
            return cls(tuple(recipes), tuple(weights), tuple(sets), engine)
        return cls(tuple(recipes), tuple(weights), tuple(sets), engine, config_file, read_file(config_file))

    def configs(self, plugins: Plugins, kind: str | None = None) -> list[RecipeConfig]:
        """The recipes to use: those named, else those of the file, else the defaults; of one task ``kind`` if given.

        Raises:
            OmniError: a recipe that does not exist or does another task, a setting that fits none.
        """
        chosen = self._choose(plugins)
        if kind is not None:
            fitting = [recipe for recipe in chosen if recipe.task.kind == kind]
            if not fitting:
                names = ", ".join(recipe.name for recipe in chosen) or "no recipe"
                raise ConfigError(f"this needs a recipe that does {kind}; selected: {names} (choose with --recipe)")
            chosen = fitting[:1]
        configs = configure(
            chosen,
            file=self.content["recipes"],
            file_name=str(self.file),
            sets=self.sets,
            weights=self.weights,
        )
        if self.engine is not None:
            from omni.loading import choose_engine  # imports the stages' modules

            choose_engine(configs, self.engine, "--engine")
        return configs

    def _choose(self, plugins: Plugins) -> list[Recipe]:
        in_file: Mapping[str, Any] = self.content["recipes"]
        for name, values in in_file.items():
            plugins.recipe(str(name))
            if values is not None and not isinstance(values, Mapping):
                raise ConfigError(f"--config {self.file}: recipes.{name} must be a mapping")
        names = self.recipes or tuple(str(name) for name in in_file)
        if names:
            twice = {name for name in names if names.count(name) > 1}
            if twice:
                raise ConfigError(f"--recipe {min(twice)} is given twice")
            return [plugins.recipe(name) for name in names]
        defaults = [recipe for recipe in plugins.recipes.values() if recipe.default]
        if not defaults:
            known = ", ".join(sorted(plugins.recipes)) or "none"
            raise ConfigError(f"no installed recipe is a default, so name one with --recipe; installed: {known}")
        return defaults


def selection_options(many: bool) -> Callable[[F], F]:
    """The options that make a :class:`Selection`; ``many`` lets ``--recipe`` repeat."""
    what = (
        "A recipe to serve; repeats.  [default: the default recipes]"
        if many
        else "The recipe to use; with --url, the server's name for it.  [default: the default one]"
    )
    options = (
        click.option("--recipe", "recipes", metavar="NAME", multiple=True, help=what),
        click.option(
            "--weights", metavar="[RECIPE=]SOURCE", multiple=True, help="A folder, or a Hub id owner/name[@revision]."
        ),
        click.option(
            "--set",
            "sets",
            metavar="[RECIPE/]STAGE.FIELD=VALUE",
            multiple=True,
            help="Set a stage's option, or limits.FIELD, executor, transport; repeats.",
        ),
        click.option(
            "--engine",
            metavar="NAME",
            help="The engine of autoregressive stages: torch, sglang, auto.  [default: auto]",
        ),
        click.option(
            "--config",
            "config_file",
            type=click.Path(path_type=Path, dir_okay=False),
            help="A YAML file with the keys 'server' and 'recipes'.",
        ),
    )

    def decorate(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate
