"""Whether a recipe can run on this machine, and if not, what brings it there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from omni.config import RecipeConfig
from omni.errors import MissingDependency, OmniError, WeightsError
from omni.loading import check, engine_for
from omni.plugins import Plugins
from omni.recipe import Recipe
from omni.stages import AR
from omni.weights import locate

DISTRIBUTION = "omni-recipes"


@dataclass(frozen=True)
class Readiness:
    """``problems`` is empty when the recipe can be launched; ``fix`` is the command that helps. ``weights`` says where
    they are, or where they will come from."""

    recipe: str
    problems: tuple[str, ...]
    fix: str | None
    weights: str

    @property
    def state(self) -> str:
        if self.problems:
            return "cannot run"
        return "ready" if self.fix is None else "ready after a download"


def examine(plugins: Plugins, recipe: Recipe) -> Readiness:
    """Check packages first; only when all are there import the stages' modules, and look for the weights."""
    problems = missing(recipe)
    if problems:
        return Readiness(recipe.name, tuple(problems), recipe.pip_line(), "not looked for")
    try:
        for stage in check(RecipeConfig(recipe)):
            if issubclass(stage.cls, AR):
                engine_for(plugins, stage)
    except OmniError as error:
        fix = recipe.pip_line() if isinstance(error, MissingDependency) else None
        return Readiness(recipe.name, (error.message,), fix, "not looked for")
    except Exception as error:  # noqa: BLE001 - a plugin's module can raise anything; it is shown as the problem
        return Readiness(recipe.name, (f"{type(error).__name__}: {error}",), None, "not looked for")
    return _with_weights(recipe)


def _with_weights(recipe: Recipe) -> Readiness:
    here: list[str] = []
    missing: list[str] = []
    for stage, declared in recipe.all_weights().items():
        try:
            found = locate(recipe, stage=stage, download=False)
        except MissingDependency as error:
            return Readiness(recipe.name, (error.message,), None, "not on this machine")
        except WeightsError:
            missing.append(str(declared.repo if declared else None))
        else:
            here += [str(found.path)] if found else []
    if missing:
        told = f"to be downloaded from the Hub: {', '.join(missing)}"
        return Readiness(recipe.name, (), f"omni pull {recipe.name}", told)
    return Readiness(recipe.name, (), None, f"on this machine: {', '.join(here)}" if here else "none needed")


def missing(recipe: Recipe) -> list[str]:
    """The recipe's requirements that are not met here, each with what is installed instead."""
    problems = []
    for requirement in requirements(recipe):
        try:
            installed = version(requirement.name)
        except PackageNotFoundError:
            problems.append(f"{requirement.name}{requirement.specifier} is not installed")
            continue
        if not requirement.specifier.contains(installed, prereleases=True):
            problems.append(f"{requirement.name}{requirement.specifier} is needed, {installed} is installed")
    return problems


def requirements(recipe: Recipe) -> list[Requirement]:
    """What a recipe needs beyond core: its own list, and what its extra of omni's distribution stands for."""
    found = [Requirement(text) for text in recipe.requires]
    if recipe.extra is not None:
        found += _of_extra(recipe.extra, frozenset())
    return [requirement for requirement in found if requirement.marker is None or requirement.marker.evaluate()]


def _of_extra(extra: str, seen: frozenset[str]) -> Iterator[Requirement]:
    try:
        declared = requires(DISTRIBUTION) or []
    except PackageNotFoundError:
        return
    for text in declared:
        requirement = Requirement(text)
        marker = requirement.marker
        if marker is None or marker.evaluate({"extra": ""}) or not marker.evaluate({"extra": extra}):
            continue
        if canonicalize_name(requirement.name) == DISTRIBUTION:
            for inner in requirement.extras - seen:
                yield from _of_extra(inner, seen | {extra})
        else:
            requirement.marker = None
            yield requirement
