"""What all five stages share: typed options, a context, a life of load and close."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar, get_args, get_origin

from pydantic import BaseModel, ConfigDict

from omni.messages import Message
from omni.recipe import Recipe

In = TypeVar("In", bound=Message, contravariant=True)
Out = TypeVar("Out", bound=Message, covariant=True)


class StageOptions(BaseModel):
    """Options of a stage; every field can be set with ``--set stage.field=value``."""

    model_config = ConfigDict(frozen=True, extra="forbid")


@dataclass(frozen=True)
class StageContext:
    """What a stage knows about where it runs. ``weights`` is a local folder (None: the recipe has none);
    ``revision`` identifies its content and is part of every cache key."""

    recipe: Recipe
    stage: str
    weights: Path | None = None
    revision: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)


class Stage(Generic[In, Out]):
    """Base of the five kinds. The two type arguments are the message types of its edges.

    Life: ``__init__`` (cheap), ``load`` (weights, in a worker thread), work, ``close``.
    """

    Options: ClassVar[type[StageOptions]] = StageOptions
    kind: ClassVar[str]
    input_type: ClassVar[type[Message]]
    output_type: ClassVar[type[Message]]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for base in getattr(cls, "__orig_bases__", ()):
            origin = get_origin(base)
            types = get_args(base)
            if isinstance(origin, type) and issubclass(origin, Stage) and len(types) >= 2:
                found = [t for t in types[:2] if isinstance(t, type)]
                if len(found) == 2:
                    cls.input_type, cls.output_type = found

    def __init__(self, options: Any, context: StageContext) -> None:
        self.options = options
        self.context = context

    def load(self) -> None:
        """Load weights; may block. Raise :class:`omni.WeightsError` or :class:`omni.MissingDependency`."""

    def close(self) -> None:
        """Free what ``load`` took; called once, also after a failed ``load``."""
