"""``omni recipes``: what can be served, and all that a recipe says about itself."""

from __future__ import annotations

import json
from typing import Any

import click

from omni.cli.output import fields, table
from omni.cli.state import Group, State, pass_state
from omni.plugins import Plugins, params_model
from omni.recipe import Recipe, Speech, Transcription, Weights


@click.group(cls=Group, invoke_without_command=True, short_help="List recipes, or show one.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def recipes(context: click.Context, as_json: bool) -> None:
    """List the installed recipes; 'omni recipes show NAME' tells all about one."""
    if context.invoked_subcommand is not None:
        if as_json:
            raise click.UsageError(f"put --json after {context.invoked_subcommand!r}")
        return
    plugins = context.ensure_object(State).plugins
    found = sorted(plugins.recipes.values(), key=lambda recipe: recipe.name)
    if as_json:
        click.echo(json.dumps([_as_json(plugins, recipe) for recipe in found], indent=2))
    elif found:
        rows = [
            (r.name, r.task.kind, "yes" if r.default else "", plugins.owner(r.name), r.license, r.summary)
            for r in found
        ]
        click.echo(table(("RECIPE", "TASK", "DEFAULT", "PLUGIN", "LICENCE", "SUMMARY"), rows))
    else:
        click.echo("no recipes are installed (see: omni plugins)")


@recipes.command()
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@pass_state
def show(state: State, name: str, as_json: bool) -> None:
    """Show a recipe: its stages, weights, licence, parameters and limits."""
    recipe = state.plugins.recipe(name)
    if as_json:
        click.echo(json.dumps({**_as_json(state.plugins, recipe), "params": _schema(recipe)}, indent=2))
        return
    click.echo(describe(state.plugins, recipe))


def _as_json(plugins: Plugins, recipe: Recipe) -> dict[str, Any]:
    return {**recipe.model_dump(mode="json"), "plugin": plugins.owner(recipe.name), "pip": recipe.pip_line()}


def _schema(recipe: Recipe) -> dict[str, Any] | None:
    model = params_model(recipe)
    return None if model is None else model.model_json_schema()


def describe(plugins: Plugins, recipe: Recipe) -> str:
    """The whole page of ``omni recipes show``."""
    head = [
        ("plugin", plugins.owner(recipe.name)),
        ("licence", recipe.license),
        ("task", _task(recipe)),
        ("weights", _weights(recipe.weights)),
        *((f"of {stage}", _weights(weights)) for stage, weights in recipe.all_weights().items() if stage is not None),
        ("install", recipe.pip_line() if recipe.extra or recipe.requires else "nothing beyond the plugin itself"),
        ("also called", ", ".join(recipe.aliases)),
        ("limits", f"{recipe.limits.max_requests} requests at once, {recipe.limits.timeout_s:g} s each"),
    ]
    blocks = [
        f"{recipe.name}: {recipe.summary}",
        fields(head, "  "),
        "stages (each takes from those it comes after)\n" + graph(recipe),
        fields(_accepts(recipe), "  "),
        "parameters of its own\n" + _params(recipe),
    ]
    return "\n\n".join(block for block in blocks if block)


def graph(recipe: Recipe) -> str:
    """The stages in working order, one a line, with their sources, classes and options."""
    rows = []
    for stage in recipe.order():
        sources = ", ".join(stage.after) or "request"
        notes = ["streams"] if stage.stream else []
        notes += [f"{name}={value!r}" for name, value in stage.options.items()]
        rows.append((f"  {sources} ->", stage.name, stage.cls, ", ".join(notes)))
    return table(("  FROM", "STAGE", "CLASS", "NOTES"), rows)


def _task(recipe: Recipe) -> str:
    task = recipe.task
    if isinstance(task, Speech):
        return f"speech (text in, audio out), {task.sample_rate} Hz, {'stereo' if task.channels == 2 else 'mono'}"
    return "transcription (audio in, text out)"


def _weights(weights: Weights | None) -> str:
    if weights is None:
        return "none"
    sources = []
    if weights.package is not None:
        sources.append(f"in a package ({weights.pip or weights.package.partition(':')[0]})")
    if weights.repo is not None:
        at = f" at {weights.revision}" if weights.revision else ""
        sources.append(f"on the Hub: {weights.repo}{at}")
    return ", or ".join(sources) + (f"; {weights.access}" if weights.access else "")


def _accepts(recipe: Recipe) -> list[tuple[str, str]]:
    task = recipe.task
    languages = "any" if task.languages is None else ", ".join(task.languages)
    if isinstance(task, Transcription):
        return [
            ("languages", languages),
            ("timestamps", ", ".join(task.timestamps) or "none"),
            ("longest audio", f"{task.max_seconds:g} s"),
            ("prompt", _yes(task.prompt)),
            ("temperature", _yes(task.temperature)),
            ("seed", _yes(task.seed)),
        ]
    native = task.native_speed
    return [
        ("voices", ", ".join(f"{v.id} ({v.name})" if v.name else v.id for v in task.voices) or "none named"),
        ("cloning", _yes(task.cloning)),
        ("languages", languages),
        ("longest text", f"{task.max_characters} characters"),
        ("speed", f"the model's own from {native[0]:g} to {native[1]:g}" if native else "by stretching time"),
        ("instructions", _yes(task.instructions)),
        ("seed", _yes(task.seed)),
    ]


def _yes(flag: bool) -> str:
    return "yes" if flag else "no"


def _params(recipe: Recipe) -> str:
    schema = _schema(recipe)
    if not schema or not schema.get("properties"):
        return "  none"
    rows = []
    for name, field in schema["properties"].items():
        default = json.dumps(field["default"]) if "default" in field else "required"
        rows.append((f"  {name}", *_type_and_limits(field), default, field.get("description", "")))
    return table(("  NAME", "TYPE", "LIMITS", "DEFAULT", "MEANING"), rows)


def _number(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


_BOUNDS = {
    "minimum": ">= {}",
    "exclusiveMinimum": "> {}",
    "maximum": "<= {}",
    "exclusiveMaximum": "< {}",
    "multipleOf": "a multiple of {}",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "minItems": "at least {} items",
    "maxItems": "at most {} items",
    "pattern": "like {}",
}


def _type_and_limits(field: dict[str, Any]) -> tuple[str, str]:
    """A JSON schema's type and bounds in words; of a union, those of all its parts but null."""
    parts = [part for part in field.get("anyOf", [field]) if part.get("type") != "null"]
    types, limits = [], []
    for part in parts:
        values = part.get("enum") or ([part["const"]] if "const" in part else None)
        types.append("one of" if values else str(part.get("type", "object")))
        if values:
            limits.append(", ".join(map(str, values)))
        limits += [words.format(_number(part[key])) for key, words in _BOUNDS.items() if key in part]
    return " or ".join(types), ", ".join(limits)
