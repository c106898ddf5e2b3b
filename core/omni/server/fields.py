"""The fields of a request: one table that both checks and documents them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
from pydantic import BaseModel, ValidationError

from omni.errors import BadRequest, ConfigError
from omni.server.errors import shown

M = TypeVar("M", bound=BaseModel)

_WORDS = {
    "string": "a string",
    "number": "a number",
    "integer": "a whole number",
    "boolean": "true or false",
    "array": "a list",
    "object": "an object",
}


def _written(number: float) -> str:
    """Whole numbers with all their digits, so that a limit and what is just over it do not look the same."""
    return shown(number) if isinstance(number, int) else f"{number:g}"


def _type_of(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    for kind, name in ((str, "string"), (int, "integer"), (float, "number"), (list, "array"), (dict, "object")):
        if isinstance(value, kind):
            return name
    return "null"


@dataclass(frozen=True)
class Field:
    """One field: the JSON types it takes, its limits, and what it is for."""

    name: str
    types: tuple[str, ...]
    about: str
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[Any, ...] = ()
    max_length: int | None = None
    default: Any = None
    repeated: bool = False
    """A list, which a form gives by sending the field several times, with or without ``[]`` after its name."""

    def check(self, value: Any) -> Any:
        """``value`` if it fits; a whole number for a number as a float.

        Raises:
            BadRequest: it names the field and the limit.
        """
        kind = _type_of(value)
        whole = kind == "integer" and "integer" not in self.types and "number" in self.types
        if kind not in self.types and not whole and not (self.choices and value in self.choices):
            raise self._error(f"must be {self._expected()}, not {shown(value)}")
        if self.choices and kind in ("string", "array"):
            for item in value if kind == "array" else [value]:
                if item not in self.choices:
                    raise self._error(f"must be {self._expected()}, not {shown(item)}")
        if kind in ("integer", "number"):
            self._check_range(value)
        if self.max_length is not None and kind in ("string", "array") and len(value) > self.max_length:
            unit = "characters" if kind == "string" else "entries"
            raise self._error(f"may have at most {self.max_length} {unit}, it has {len(value)}")
        if not whole:
            return value
        try:
            return float(value)
        except OverflowError:
            raise self._error("must be a number that a float can hold") from None

    def _check_range(self, value: float) -> None:
        # A whole number of 400 digits is finite, and no float can hold it: it is compared as it is.
        if isinstance(value, float) and not math.isfinite(value):
            raise self._error("must be a finite number")
        if self.minimum is not None and value < self.minimum:
            raise self._error(f"must be at least {_written(self.minimum)}, not {_written(value)}")
        if self.maximum is not None and value > self.maximum:
            raise self._error(f"must be at most {_written(self.maximum)}, not {_written(value)}")

    def parse(self, text: str) -> Any:
        """The text of a form field as the JSON value it stands for; still to be checked."""
        if "boolean" in self.types:
            word = text.strip().lower()
            if word in ("true", "1"):
                return True
            if word in ("false", "0"):
                return False
            raise self._error(f"must be true or false, not {shown(text)}")
        for kind, convert in (("integer", int), ("number", float)):
            if kind in self.types and "_" not in text:
                try:
                    return convert(text)
                except ValueError:
                    continue
        if "string" not in self.types and "array" not in self.types:
            raise self._error(f"must be {self._expected()}, not {shown(text)}")
        return text

    def _expected(self) -> str:
        if self.choices and set(self.types) <= {"string", "array"}:
            return f"one of {', '.join(map(str, self.choices))}"
        words = [_WORDS[kind] for kind in self.types] + [repr(choice) for choice in self.choices]
        return " or ".join(words)

    def _error(self, text: str) -> BadRequest:
        return BadRequest(f"{self.name!r} {text}", param=self.name)

    def schema(self) -> dict[str, Any]:
        """JSON schema, for the API's description."""
        kinds: list[dict[str, Any]] = []
        for kind in self.types:
            entry: dict[str, Any] = {"type": kind}
            if kind == "array":
                entry["items"] = {"type": "string", "enum": list(self.choices)} if self.choices else {}
            elif kind == "string" and self.choices:
                entry["enum"] = list(self.choices)
            if kind in ("integer", "number"):
                entry |= {"minimum": self.minimum} if self.minimum is not None else {}
                entry |= {"maximum": self.maximum} if self.maximum is not None else {}
            if self.max_length is not None and kind in ("string", "array"):
                entry["maxLength" if kind == "string" else "maxItems"] = self.max_length
            kinds.append(entry)
        if self.choices and "string" not in self.types and "array" not in self.types:
            kinds.append({"type": "string", "enum": list(self.choices)})
        schema: dict[str, Any] = kinds[0] if len(kinds) == 1 else {"anyOf": kinds}
        schema["description"] = self.about
        if self.default is not None:
            schema["default"] = self.default
        return schema


class Parameters:
    """A recipe's own request fields: its pydantic model, used strictly."""

    def __init__(self, recipe: str, model: type[BaseModel] | None, taken: Iterable[str]) -> None:
        """Raises ConfigError when the model has a field that core already has (``taken``), or one that is read under
        another name than it is written: stages read what was validated here once more."""
        self.model = model
        self.names: dict[str, str] = {}
        for name, info in (model.model_fields if model is not None else {}).items():
            alias = name if info.validation_alias is None else info.validation_alias
            if alias != (info.serialization_alias or name) or not isinstance(alias, str):
                raise ConfigError(
                    f"recipe {recipe!r}: its parameter {name!r} is read and written under different names; give it one "
                    "'alias', or none"
                )
            self.names[alias] = name
        clash = sorted(set(self.names) & set(taken))
        if clash:
            raise ConfigError(f"recipe {recipe!r}: its parameter {clash[0]!r} is already a field of every such request")

    def validate(self, values: Mapping[str, Any], *, text: bool = False) -> dict[str, Any]:
        """The fields that were set, validated, as plain JSON values. ``text``: the values come from a form.

        Raises:
            BadRequest: it names the field and the limit.
        """
        if self.model is None or not values:
            return {}
        return validated(self.model, values, text=text).model_dump(mode="json", exclude_unset=True, by_alias=True)

    def schema(self) -> dict[str, Any]:
        return self.model.model_json_schema() if self.model is not None else {"type": "object", "properties": {}}


def validated(model: type[M], values: Mapping[str, Any], *, text: bool = False) -> M:
    """``values`` as a pydantic model. ``text``: they come from a form.

    Raises:
        BadRequest: it names the field and the limit.
    """
    try:
        if text:
            made = model.model_validate(dict(values), strict=False)
        else:
            # As JSON, for its strictness: no "1.0" and no true for a number, yet a list for a tuple.
            made = model.model_validate_json(msgspec.json.encode(values), strict=True)
    except ValidationError as error:
        raise _refusal(error) from None
    for name, value in made.model_dump(exclude_unset=True, by_alias=True).items():
        # "nan" and "1e999" in a form, 400 digits in JSON: nothing has refused them so far.
        if not _finite(value):
            raise BadRequest(f"{name!r} must be a finite number", param=name)
    return made


def _finite(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, (list, tuple)):
        return True
    return all(map(_finite, value))


def _refusal(error: ValidationError) -> BadRequest:
    first = error.errors(include_url=False)[0]
    param = ".".join(str(part)[:100] for part in first["loc"]) or None
    said = first["msg"]
    text = f"{param!r}: {said[:1].lower()}{said[1:]}" if param else said
    return BadRequest(f"{text} (given: {shown(first['input'])})", param=param)


def unknown_field(name: str, known: Iterable[str]) -> BadRequest:
    listed = ", ".join(dict.fromkeys(known))
    return BadRequest(
        f"the field {shown(name)} is unknown; known are: {listed}", param=name[:100], code="unknown_parameter"
    )
