"""The request parameters that a recipe declares, legal values of each, and values just outside of its range."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from omni.errors import BadRequest
from omni.messages import ReferenceAudio
from omni.plugins import params_model
from omni.recipe import Recipe, Speech
from omni.server.fields import Parameters
from omni.testing.samples import Request, tone, wav

MANY = 6
"""Voices and languages that are tried, of those declared."""


def declared_fields(recipe: Recipe) -> dict[str, tuple[Any, ...]]:
    """Every parameter that can be varied, with legal values to try; an empty tuple where none could be made up."""
    return {**_native(recipe), **{name: legal(schema) for name, schema in properties(recipe).items()}}


def _native(recipe: Recipe) -> dict[str, tuple[Any, ...]]:
    task = recipe.task
    fields: dict[str, tuple[Any, ...]] = {}
    if task.languages is not None and len(task.languages) > 1:
        fields["language"] = task.languages[:MANY]
    if task.seed:
        fields["seed"] = (7, 8, 9)
    if isinstance(task, Speech):
        if len(task.voices) > 1:
            fields["voice"] = tuple(voice.id for voice in task.voices[:MANY])
        if task.instructions:
            fields["instructions"] = ("Murmur as if somebody slept next door.", "Shout with joy across a stadium.")
        if task.native_speed is not None:
            fields["speed"] = tuple(float(speed) for speed in task.native_speed)
        if task.cloning:
            fields["references"] = (reference(140.0), reference(260.0))
        return fields
    if task.prompt:
        fields["prompt"] = (None, "Glossary: Kubernetes, Worcestershire, quinoa.")
    if task.temperature:
        fields["temperature"] = (0.0, 1.0)
    return fields


def reference(frequency: float) -> list[ReferenceAudio]:
    """A voice to clone, made up."""
    return [ReferenceAudio(audio=wav(tone(2.0, frequency), 16000), text="Nothing in particular was said here.")]


def properties(recipe: Recipe) -> dict[str, dict[str, Any]]:
    """JSON schema of each field of the recipe's own parameter model, references resolved."""
    model = params_model(recipe)
    if model is None:
        return {}
    schema = model.model_json_schema()
    return {name: _plain(field, schema.get("$defs", {})) for name, field in schema.get("properties", {}).items()}


def _plain(field: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """Without ``$ref`` and without the ``null`` of an optional field."""
    while "$ref" in field:
        field = definitions[field["$ref"].rpartition("/")[2]]
    if "anyOf" in field:
        choices = [_plain(choice, definitions) for choice in field["anyOf"]]
        field = next((choice for choice in choices if choice.get("type") != "null"), field)
    return field


def limits(schema: dict[str, Any]) -> tuple[float | None, float | None]:
    """Smallest and largest number that are legal; None: no limit."""
    step = 1 if schema.get("type") == "integer" else 1e-6
    low, high = schema.get("minimum"), schema.get("maximum")
    if "exclusiveMinimum" in schema:
        low = schema["exclusiveMinimum"] + step
    if "exclusiveMaximum" in schema:
        high = schema["exclusiveMaximum"] - step
    return low, high


def legal(schema: dict[str, Any]) -> tuple[Any, ...]:
    """Values that the schema of a field allows."""
    if "enum" in schema:
        return tuple(schema["enum"])
    kind = schema.get("type")
    if kind == "boolean":
        return (False, True)
    if kind not in ("integer", "number"):
        return ()
    low, high = limits(schema)
    if low is None or high is None:
        start = low if low is not None else high if high is not None else 0
        return (start, start + 1) if high is None else (start - 1, start)
    middle = (low + high) // 2 if kind == "integer" else (low + high) / 2
    return tuple(dict.fromkeys((low, middle, high)))


def illegal(schema: dict[str, Any]) -> Iterable[tuple[Any, str]]:
    """Values that the schema of a field forbids, each with the limit in words."""
    kind = schema.get("type")
    if "enum" in schema:
        yield "no-such-choice", f"one of {schema['enum']}"
    elif kind in ("integer", "number"):
        low, high = limits(schema)
        if low is not None:
            yield low - 1, f"at least {low:g}"
        if high is not None:
            yield high + 1, f"at most {high:g}"
    elif kind == "string" and "maxLength" in schema:
        yield "x" * (schema["maxLength"] + 1), f"at most {schema['maxLength']} characters"
    elif kind == "array" and "maxItems" in schema:
        yield [None] * (schema["maxItems"] + 1), f"at most {schema['maxItems']} items"


def accepts(recipe: Recipe, params: dict[str, Any]) -> str | None:
    """None when the server takes ``params`` for this recipe; otherwise the field that it objects to."""
    try:
        _parameters(recipe).validate(params)
    except BadRequest as error:
        return (error.param or "").partition(".")[0]
    return None


def _parameters(recipe: Recipe) -> Parameters:
    return Parameters(recipe.name, params_model(recipe), ())


def with_value(recipe: Recipe, request: Request, name: str, value: Any) -> Request:
    """The request with one parameter set, as the server would hand it over: a voice and references exclude each
    other."""
    if name == "references":
        return msgspec.structs.replace(request, references=value, voice="")
    if name == "voice":
        return msgspec.structs.replace(request, voice=value, references=[])
    if name not in properties(recipe):
        return msgspec.structs.replace(request, **{name: value})
    return msgspec.structs.replace(request, params=_parameters(recipe).validate({**request.params, name: value}))
