"""Every setting of a selection of recipes, its value, and the layer that it came from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from omni.config import RecipeConfig
from omni.loading import CheckedStage, check
from omni.recipe import Weights

DEFAULT, RECIPE = "default", "recipe"


@dataclass(frozen=True)
class Line:
    """``setting`` is what ``--set`` takes for it."""

    setting: str
    value: Any
    source: str


def explain(config: RecipeConfig) -> list[Line]:
    """All settings of one recipe, checked as a launch would.

    Raises:
        ConfigError: as :func:`omni.loading.check`.
    """
    name = config.recipe.name
    lines = [*_of_recipe(config)]
    for stage in check(config):
        lines += _of_stage(config, stage)
    return [Line(f"{name}/{line.setting}", line.value, line.source) for line in lines]


def _of_recipe(config: RecipeConfig) -> Iterator[Line]:
    yield _weights(config, "weights", config.recipe.weights)
    yield _line(config, "executor", config.text("executor", "inprocess"), False)
    yield _line(config, "transport", config.text("transport", "inproc"), False)
    limits = config.limits()
    for name in type(limits).model_fields:
        yield _line(config, f"limits.{name}", getattr(limits, name), name in config.recipe.limits.model_fields_set)


def _weights(config: RecipeConfig, path: str, declared: Weights | None) -> Line:
    origin = None if declared is None else declared.package or declared.repo
    return _line(config, path, config.text(path, origin), declared is not None)


def _of_stage(config: RecipeConfig, stage: CheckedStage) -> Iterator[Line]:
    spec, options = stage.spec, stage.options
    if spec.weights is not None:
        yield _weights(config, f"{spec.name}.weights", spec.weights)
    values = {name: getattr(options, name) for name in type(options).model_fields}
    for name, value in {**values, **(options.__pydantic_extra__ or {})}.items():
        yield from _leaves(config, spec.name, name, value, spec.options)


def _leaves(config: RecipeConfig, head: str, name: str, value: Any, declared: Any) -> Iterator[Line]:
    """A mapping is explained key by key, since each key may come from another layer."""
    in_recipe = isinstance(declared, dict) and name in declared
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _leaves(config, f"{head}.{name}", key, inner, declared[name] if in_recipe else None)
    else:
        yield _line(config, f"{head}.{name}", value, in_recipe)


def _line(config: RecipeConfig, path: str, value: Any, in_recipe: bool) -> Line:
    setting = config.settings.get(path)
    source = setting.source if setting is not None else RECIPE if in_recipe else DEFAULT
    return Line(path, value, source)
