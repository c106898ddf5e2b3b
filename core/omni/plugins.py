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
_REGISTRIES = ("omni_engines", "omni_transports", "omni_executors")
_HOOKS = ("omni_recipes", *_REGISTRIES, "omni_routes", "omni_commands")


def import_path(path: str, what: str) -> Any:
    """The object that ``module:name`` names.

    Raises:
        MissingDependency: a package that the module needs is not installed.
        ConfigError: the module or the name does not exist, or the module fails; ``what`` says whose path it is.
    """
    module_name, _, name = path.partition(":")
    try:
        target: Any = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and not (module_name + ".").startswith(error.name + "."):
            raise MissingDependency(f"{what}: {path!r} needs the package {error.name!r}") from error
        raise ConfigError(f"{what}: there is no module {module_name!r}") from error
    except Exception as error:
        raise ConfigError(
            f"{what}: module {module_name!r} cannot be imported: {type(error).__name__}: {error}"
        ) from error
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
        self.plugins: list[Plugin] = []
        self._recipes: dict[str, Recipe] = {}
        self._owners: dict[str, str] = {}
        self._registries: dict[str, dict[str, str]] = {hook: {} for hook in _REGISTRIES}
        self._register("core", builtin)

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
            self._register(name, load())
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

    def _register(self, name: str, module: object) -> None:
        """All of a plugin, or nothing of it and an error."""
        for hook in _HOOKS:
            if hasattr(module, hook) and self._manager.parse_hookimpl_opts(module, hook) is None:
                raise ConfigError(f"{hook} of plugin {name!r} is not decorated with @hookimpl")
        taken = self._manager.get_plugin(name) is not None
        try:
            self._manager.register(module, name)
            self._manager.check_pending()
            self._collect(name)
        except BaseException:
            if not taken and self._manager.get_plugin(name) is not None:
                self._manager.unregister(name=name)
            raise

    def _collect(self, name: str) -> None:
        """Ask a plugin for its recipes, engines, transports and executors; take them when none is taken already."""
        recipes: dict[str, Recipe] = {}
        for recipe in (recipe for part in self._of(name, "omni_recipes")() for recipe in part):
            if not isinstance(recipe, Recipe):
                raise ConfigError(f"omni_recipes of {name!r} gave {type(recipe).__name__}, not Recipe")
            if recipe.name in self._recipes or recipe.name in recipes:
                raise ConfigError(
                    f"recipe {recipe.name!r} is already declared by {self._owners.get(recipe.name, name)!r}"
                )
            recipes[recipe.name] = recipe
        registries = {hook: self._extended(name, hook) for hook in _REGISTRIES}
        self._recipes.update(recipes)
        self._owners.update(dict.fromkeys(recipes, name))
        self._registries = registries

    def _extended(self, name: str, hook: str) -> dict[str, str]:
        merged = dict(self._registries[hook])
        for part in self._of(name, hook)():
            for key, path in part.items():
                if merged.setdefault(key, path) != path:
                    what = hook.removeprefix("omni_").removesuffix("s")
                    raise ConfigError(f"there are two with the name {key!r} ({what}): {merged[key]} and {path}")
        return merged

    def _of(self, name: str, hook: str) -> pluggy.HookCaller:
        """A hook as implemented by one plugin."""
        others = [module for other, module in self._manager.list_name_plugin() if other != name]
        return self._manager.subset_hook_caller(hook, others)

    @property
    def recipes(self) -> Mapping[str, Recipe]:
        return self._recipes

    def owner(self, recipe: str) -> str:
        """Name of the plugin that declares a recipe."""
        return self._owners[recipe]

    def recipe(self, name: str) -> Recipe:
        """The recipe of a name or of an alias.

        Raises:
            ModelNotFound: there is none; lists those that there are.
            ConfigError: several have the alias.
        """
        if name in self._recipes:
            return self._recipes[name]
        found = [recipe for recipe in self._recipes.values() if name in recipe.aliases]
        if len(found) > 1:
            raise ConfigError(f"several recipes are called {name!r}: {', '.join(recipe.name for recipe in found)}")
        if not found:
            known = ", ".join(sorted(self._recipes)) or "none"
            raise ModelNotFound(f"there is no recipe {name!r}; there are: {known}", param="recipe")
        return found[0]

    def engines(self) -> dict[str, str]:
        return dict(self._registries["omni_engines"])

    def transports(self) -> dict[str, str]:
        return dict(self._registries["omni_transports"])

    def executors(self) -> dict[str, str]:
        return dict(self._registries["omni_executors"])

    def build(self, registry: Mapping[str, str], name: str, what: str) -> Any:
        """An instance of the executor or transport called ``name``."""
        if name not in registry:
            raise ConfigError(f"there is no {what} {name!r}; there are: {', '.join(sorted(registry))}")
        return import_path(registry[name], f"{what} {name!r}")()

    def add_routes(self, router: APIRouter, service: Service) -> None:
        """Let every plugin add its endpoints. One that raises adds none and has that as its error."""
        from fastapi import APIRouter

        for name in self._names():
            own = APIRouter()
            try:
                self._of(name, "omni_routes")(router=own, service=service)
                router.include_router(own)
            except Exception:  # noqa: BLE001 - kept and shown by `omni plugins`
                self._fail(name, traceback.format_exc())

    def add_commands(self, cli: click.Group) -> None:
        """Let every plugin add its commands. One that raises, or takes a name that is in use, adds none and has that
        as its error."""
        import click

        for name in self._names():
            own = click.Group()
            try:
                self._of(name, "omni_commands")(cli=own)
                taken = sorted(own.commands.keys() & cli.commands.keys())
                if taken:
                    raise ConfigError(f"the command {taken[0]!r} exists already")
            except Exception:  # noqa: BLE001 - kept and shown by `omni plugins`
                self._fail(name, traceback.format_exc())
                continue
            cli.commands.update(own.commands)

    def _names(self) -> list[str]:
        return [name for name, _ in self._manager.list_name_plugin()]

    def _fail(self, name: str, error: str) -> None:
        self.plugins = [replace(plugin, error=error) if plugin.name == name else plugin for plugin in self.plugins]


def params_model(recipe: Recipe) -> Any:
    """The pydantic model of a recipe's own request parameters, or None."""
    if recipe.task.params is None:
        return None
    return cast(Any, import_path(recipe.task.params, f"parameters of recipe {recipe.name!r}"))
