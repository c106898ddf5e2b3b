"""Parameter models with one fault each. The comment of a class says what its author got wrong."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from toy_tts import Params


class Clamps(Params):
    """Out-of-range values are changed silently."""

    @field_validator("pitch", mode="before")
    @classmethod
    def _clamp(cls, value: Any) -> Any:
        return min(2.0, max(0.5, value)) if isinstance(value, float | int) else value


class Ignores(Params):
    model_config = ConfigDict(extra="ignore")


class Unbounded(Params):
    loudness: float = 1.0


class Nameless(BaseModel):
    """The error does not say which field it is about."""

    model_config = ConfigDict(extra="forbid")

    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] = 0.7
    pitch: Annotated[float, Field(json_schema_extra={"minimum": 0.5, "maximum": 2}, allow_inf_nan=False)] = 1.0
    bright: bool = False

    @model_validator(mode="after")
    def _range(self) -> Nameless:
        if not 0.5 <= self.pitch <= 2:
            raise ValueError("something is out of range")
        return self
