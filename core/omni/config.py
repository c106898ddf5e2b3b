"""Settings of the recipes to serve: defaults, the recipe, a file, the command line; and where each came from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from omni.errors import ConfigError
from omni.recipe import RESERVED, Limits, Recipe


@dataclass(frozen=True)
class Setting:
    """A value and the layer it came from, e.g. ``--set`` or a file's name."""

    value: Any
    source: str


@dataclass
class RecipeConfig:
    """One recipe with what was set on top of it. Keys of ``settings`` are dotted paths: ``weights``, ``executor``,
    ``transport``, ``limits.FIELD``, ``stage.option`` or ``stage.weights``, down to the single value."""

    recipe: Recipe
    settings: dict[str, Setting] = field(default_factory=dict)

    def set(self, path: str, value: Any, source: str) -> None:
        """Raises ConfigError when ``path`` names neither a stage of the recipe nor one of its own fields."""
        head = path.split(".")[0]
        if head not in RESERVED and head not in {s.name for s in self.recipe.stages}:
            stages = ", ".join(s.name for s in self.recipe.stages)
            raise ConfigError(
                f"{source}: {path!r}: recipe {self.recipe.name!r} has no stage {head!r}; it has: {stages}"
                f"{self.recipe.hint()}"
            )
        text = self._text_setting(path)
        if text is not None:
            if path != text or not isinstance(value, str):
                raise ConfigError(f"{source}: {text!r} takes one string")
        elif head == path and not isinstance(value, Mapping):
            raise ConfigError(f"{source}: {path!r} takes a mapping of fields, or set {path}.FIELD")
        if isinstance(value, Mapping) and (value or head == path):
            for key, inner in value.items():
                if not isinstance(key, str) or not key or "." in key:
                    raise ConfigError(f"{source}: {path!r}: {key!r} cannot be the name of a field")
                self.set(f"{path}.{key}", inner, source)
            return
        # The later layer wins as a whole: what it sets replaces what was set below or above this path.
        for other in list(self.settings):
            if other.startswith(path + ".") or path.startswith(other + "."):
                del self.settings[other]
        self.settings[path] = Setting(value, source)

    def _text_setting(self, path: str) -> str | None:
        """The setting that ``path`` is or lies below, where it is one that takes a string: not an option of a stage."""
        head, _, rest = path.partition(".")
        if head in RESERVED:
            return head if head != "limits" else None
        own = rest.partition(".")[0] == "weights" and self.recipe.stage(head).weights is not None
        return f"{head}.weights" if own else None

    def text(self, name: str, default: str | None = None) -> str | None:
        setting = self.settings.get(name)
        return default if setting is None else str(setting.value)

    def tree(self, head: str) -> dict[str, Any]:
        """The settings below ``head``, nested: ``ar.torch.page_size`` of ``ar`` is ``{"torch": {"page_size": …}}``."""
        result: dict[str, Any] = {}
        for path, setting in self.settings.items():
            first, *keys = path.split(".")
            if first == head and keys:
                inner = result
                for key in keys[:-1]:
                    inner = inner.setdefault(key, {})
                inner[keys[-1]] = setting.value
        return result

    def options(self, stage: str) -> dict[str, Any]:
        """Options of a stage: the recipe's, overridden field by field."""
        spec, options = self.recipe.stage(stage), self.tree(stage)
        if spec.weights is not None:
            options.pop("weights", None)
        return _merge(spec.options, options)

    def limits(self) -> Limits:
        try:
            return Limits.model_validate({**self.recipe.limits.model_dump(), **self.tree("limits")})
        except ValidationError as error:
            raise ConfigError(f"limits of recipe {self.recipe.name!r}: {describe(error)}") from error


def _merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """``above`` laid over ``below``, mapping by mapping."""
    merged = dict(below)
    for key, value in above.items():
        inner = merged.get(key)
        if isinstance(inner, Mapping) and isinstance(value, Mapping):
            value = _merge(inner, value)
        merged[key] = value
    return merged


def describe(error: ValidationError) -> str:
    """A pydantic error in one line: each field with what is wrong about it."""
    return "; ".join(
        f"{'.'.join(str(part) for part in entry['loc']) or 'value'}: {entry['msg']}" for entry in error.errors()
    )


def read_file(path: Path) -> dict[str, Any]:
    """A YAML file with the keys ``server`` and ``recipes``; anything else is a ConfigError that names it."""
    try:
        content = yaml.safe_load(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"--config {path}: {error.strerror}") from error
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"--config {path}: {error}") from error
    content = {} if content is None else content
    if not isinstance(content, dict):
        raise ConfigError(f"--config {path}: the file must hold a mapping")
    for key in content:
        if key not in ("server", "recipes"):
            raise ConfigError(f"--config {path}: unknown key {key!r}; known are server and recipes")
    for key in ("server", "recipes"):
        value = content.setdefault(key, {})
        if value is None:
            content[key] = {}
        elif not isinstance(value, dict):
            raise ConfigError(f"--config {path}: {key} must be a mapping")
    return content


def parse_set(text: str) -> tuple[str | None, str, Any]:
    """``[recipe/]stage.field=value`` as (recipe, path, value); the value is read as YAML."""
    path, equals, raw = text.partition("=")
    if not equals or not path:
        raise ConfigError(f"--set {text!r}: write stage.field=value")
    recipe, slash, rest = path.rpartition("/")
    try:
        value = yaml.safe_load(raw)
    except yaml.YAMLError as error:
        raise ConfigError(f"--set {text!r}: the value is not valid YAML: {error}") from error
    return (recipe if slash else None), rest, value


def configure(
    recipes: Sequence[Recipe],
    *,
    file: Mapping[str, Any] | None = None,
    file_name: str = "file",
    sets: Iterable[str] = (),
    weights: Iterable[str] = (),
) -> list[RecipeConfig]:
    """Lay the layers over the recipes.

    ``file`` holds settings by recipe; those of recipes that are not in ``recipes`` are for other launches. ``weights``
    are ``SOURCE`` (when one recipe is served) or ``recipe=SOURCE``. A ``--set`` without a recipe goes to the one recipe
    that has the stage.

    Raises:
        ConfigError: it names the layer and the setting that fits no recipe, or more than one.
    """
    configs = {recipe.name: RecipeConfig(recipe) for recipe in recipes}
    for served, values in (file or {}).items():
        if values is not None and not isinstance(values, Mapping):
            raise ConfigError(f"{file_name}: recipe {served!r} takes a mapping of settings")
        if (config := _named(configs, str(served))) is not None:
            for key, value in (values or {}).items():
                config.set(str(key), value, file_name)
    for text in sets:
        target, path, value = parse_set(text)
        for config in _targets(configs, target, path, f"--set {text!r}"):
            config.set(path, value, "--set")
    for text in weights:
        owner, equals, source = text.partition("=")
        # A folder may have an equals sign in its name, a recipe never has a slash.
        if not equals or "/" in owner:
            owner, source = "", text
        (config,) = _targets(configs, owner or None, "weights", f"--weights {text!r}")
        config.set("weights", source, "--weights")
    return list(configs.values())


def _named(configs: Mapping[str, RecipeConfig], name: str) -> RecipeConfig | None:
    """The one of a recipe's name or alias."""
    return configs.get(name) or next((c for c in configs.values() if name in c.recipe.aliases), None)


def _targets(configs: Mapping[str, RecipeConfig], name: str | None, path: str, what: str) -> Sequence[RecipeConfig]:
    if name is not None:
        config = _named(configs, name)
        if config is None:
            raise ConfigError(f"{what}: recipe {name!r} is not served; served are: {', '.join(configs)}")
        return [config]
    head = path.split(".")[0]
    if head in RESERVED and head != "weights":
        return list(configs.values())
    fitting = [
        config
        for config in configs.values()
        if head in RESERVED or head in {stage.name for stage in config.recipe.stages}
    ]
    if len(fitting) == 1:
        return fitting
    if fitting:
        names = ", ".join(config.recipe.name for config in fitting)
        hint = "--weights RECIPE=SOURCE" if head == "weights" else f"--set RECIPE/{path}=…"
        raise ConfigError(f"{what}: fits several recipes ({names}); write {hint}")
    stages = ", ".join(s.name for config in configs.values() for s in config.recipe.stages)
    hints = "".join(config.recipe.hint() for config in configs.values())
    raise ConfigError(f"{what}: no served recipe has a stage {head!r}; there are: {stages}{hints}")
