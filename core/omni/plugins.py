"""Finding and loading plugins. One that fails is reported and leaves the others alone."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any, cast

import pluggy

from omni import builtin, hookspecs
from omni.errors import ConfigError, MissingDependency, ModelNotFound
from omni.recipe import Recipe

if TYPE_CHECKING:
    import click
    from fastapi import APIRouter

    from omni.service import Service

GROUP = "omni"


def import_path(path: str, what: str) -> Any:
    """The object that ``module:name`` names.

    Raises:
        MissingDependency: a package that the module needs is not installed.
        ConfigError: the module or the name does not exist; ``what`` says whose path it is.
    """
    module_name, _, name = path.partition(":")
    try:
        target: Any = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and not (module_name + ".").startswith(error.name + "."):
            raise MissingDependency(f"{what}: {path!r} needs the package {error.name!r}") from error
        raise ConfigError(f"{what}: there is no module {module_name!r}") from error
    for part in name.split("."):
        if not hasattr(target, part):
            raise ConfigError(f"{what}: module {module_name!r} has no {name!r}")
        target = getattr(target, part)
    return target


@dataclass(frozen=True)
class Plugin:
    """One entry point: loaded, or ``error`` holds the traceback of why not."""

    name: str
    module: str
    distribution: str
    version: str
    error: str | None = None


class Plugins:
    """The loaded plugins and what they contribute."""

    def __init__(self) -> None:
        self._manager = pluggy.PluginManager("omni")
        self._manager.add_hookspecs(hookspecs)
        self._manager.register(builtin, "core")
        self.plugins: list[Plugin] = []
        self._recipes: dict[str, Recipe] = {}
        self._owners: dict[str, str] = {"": "core"}

    @classmethod
    def load(cls, points: Iterable[EntryPoint] | None = None) -> Plugins:
        """Load every entry point of the group ``omni`` (or ``points``, for tests)."""
        plugins = cls()
        found = entry_points(group=GROUP) if points is None else points
        for point in sorted(found, key=lambda p: p.name):
            plugins.add(point.name, point.load, point)
        return plugins

    def add(self, name: str, load: Callable[[], object], point: EntryPoint | None = None) -> None:
        """Register what ``load`` gives; whatever it raises is kept as the plugin's error."""
        error = None
        try:
            module = load()
            self._manager.register(module, name)
            try:
                self._collect(name, module)
            except BaseException:
                self._manager.unregister(name=name)
                raise
        except (Exception, SystemExit):  # noqa: BLE001 - kept and shown by `omni plugins`
            error = traceback.format_exc()
        dist = point.dist if point is not None else None
        self.plugins.append(
            Plugin(
                name=name,
                module=point.value if point is not None else name,
                distribution=dist.name if dist is not None else "?",
                version=dist.version if dist is not None else "?",
                error=error,
            )
        )

    def _collect(self, name: str, module: object) -> None:
        hook = getattr(module, "omni_recipes", None)
        recipes = list(hook()) if hook is not None else []
        for recipe in recipes:
            if not isinstance(recipe, Recipe):
                raise ConfigError(f"omni_recipes of {name!r} gave a {type(recipe).__name__}, not a Recipe")
            if recipe.name in self._recipes:
                raise ConfigError(f"recipe {recipe.name!r} is already declared by {self._owners[recipe.name]!r}")
        for recipe in recipes:
            self._recipes[recipe.name] = recipe
            self._owners[recipe.name] = name

    @property
    def recipes(self) -> Mapping[str, Recipe]:
        return self._recipes

    def owner(self, recipe: str) -> str:
        """Name of the plugin that declares a recipe."""
        return self._owners[recipe]

    def recipe(self, name: str) -> Recipe:
        try:
            return self._recipes[name]
        except KeyError:
            known = ", ".join(sorted(self._recipes)) or "none"
            raise ModelNotFound(f"there is no recipe {name!r}; there are: {known}", param="recipe") from None

    def engines(self) -> dict[str, str]:
        return self._merged(self._manager.hook.omni_engines(), "engine")

    def transports(self) -> dict[str, str]:
        return self._merged(self._manager.hook.omni_transports(), "transport")

    def executors(self) -> dict[str, str]:
        return self._merged(self._manager.hook.omni_executors(), "executor")

    def build(self, registry: Mapping[str, str], name: str, what: str) -> Any:
        """An instance of the executor or transport called ``name``."""
        if name not in registry:
            raise ConfigError(f"there is no {what} {name!r}; there are: {', '.join(sorted(registry))}")
        return import_path(registry[name], f"{what} {name!r}")()

    @staticmethod
    def _merged(parts: list[Mapping[str, str]], what: str) -> dict[str, str]:
        merged: dict[str, str] = {}
        for part in parts:
            for name, path in part.items():
                if merged.get(name, path) != path:
                    raise ConfigError(f"two plugins bring an {what} named {name!r}: {merged[name]} and {path}")
                merged[name] = path
        return merged

    def add_routes(self, router: APIRouter, service: Service) -> None:
        self._manager.hook.omni_routes(router=router, service=service)

    def add_commands(self, cli: click.Group) -> None:
        """Let every plugin add its commands. One that raises, or takes a name that is in use, adds none and has that
        as its error."""
        import click

        modules = self._manager.list_name_plugin()
        for name, module in modules:
            own = click.Group()
            hook = self._manager.subset_hook_caller(
                "omni_commands", [other for _, other in modules if other is not module]
            )
            try:
                hook(cli=own)
                taken = sorted(own.commands.keys() & cli.commands.keys())
                if taken:
                    raise ConfigError(f"the command {taken[0]!r} exists already")
            except Exception:  # noqa: BLE001 - kept and shown by `omni plugins`
                self._fail(name, traceback.format_exc())
                continue
            cli.commands.update(own.commands)

    def _fail(self, name: str, error: str) -> None:
        self.plugins = [replace(plugin, error=error) if plugin.name == name else plugin for plugin in self.plugins]


def params_model(recipe: Recipe) -> Any:
    """The pydantic model of a recipe's own request parameters, or None."""
    if recipe.task.params is None:
        return None
    return cast(Any, import_path(recipe.task.params, f"parameters of recipe {recipe.name!r}"))
