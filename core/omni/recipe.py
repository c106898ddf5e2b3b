"""What a plugin declares: recipes, their stages, weights, task and limits.

Everything here is plain data that imports without torch; classes are named as ``module:Class`` strings
and resolved when the recipe is loaded.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

_NAME = r"^[a-z0-9][a-z0-9._-]*$"
_STAGE = r"^[a-z0-9][a-z0-9_-]*$"
_PATH = r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$"
RESERVED = ("weights", "executor", "transport", "limits")
"""Words that ``--set`` understands beside the names of stages; no stage may be called so."""

ImportPath = Annotated[str, Field(pattern=_PATH)]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Weights(_Frozen):
    """Where weights come from, tried in this order: ``--weights``, ``package``, the Hub.

    ``repo`` is a Hub id, ``revision`` a commit or tag, ``allow`` the file patterns to fetch. ``package`` names
    a callable ``module:function`` of an installed package that returns a local folder; ``pip`` is the
    requirement that brings it. ``access`` says in words what the Hub asks for (gated repository, licence).
    """

    repo: str | None = None
    revision: str | None = None
    allow: tuple[str, ...] = ()
    package: ImportPath | None = None
    pip: str | None = None
    access: str | None = None

    def __init__(self, repo: str | None = None, **fields: Any) -> None:
        BaseModel.__init__(self, repo=repo, **fields)

    @model_validator(mode="after")
    def _somewhere(self) -> Weights:
        if self.repo is None and self.package is None:
            raise ValueError("weights need a repo or a package")
        return self


class Voice(_Frozen):
    id: str
    name: str = ""
    language: str | None = None

    def __init__(self, id: str, **fields: Any) -> None:
        BaseModel.__init__(self, id=id, **fields)


class Speech(_Frozen):
    """Text in, audio out.

    ``native_speed`` is the range of ``speed`` that the model itself can speak at; outside of it, or without
    it, core stretches time and keeps the pitch. ``params`` names a pydantic model of further request fields.
    ``stream_tolerance`` is the largest difference of one sample between streamed and whole output.
    """

    kind: Literal["speech"] = "speech"
    sample_rate: Annotated[int, Field(ge=8000, le=192000)]
    channels: Literal[1, 2] = 1
    voices: tuple[Voice, ...] = ()
    languages: tuple[str, ...] | None = None
    cloning: bool = False
    instructions: bool = False
    seed: bool = False
    native_speed: tuple[float, float] | None = None
    max_characters: Annotated[int, Field(ge=1)] = 100_000
    params: ImportPath | None = None
    stream_tolerance: float = 0.0

    @field_validator("voices", mode="before")
    @classmethod
    def _voice_names(cls, value: Any) -> Any:
        return tuple(Voice(v) if isinstance(v, str) else v for v in value)


class Transcription(_Frozen):
    """Audio in, text out. ``languages`` are ISO 639-1 codes (None: any); one language means no detection.

    ``timestamps`` says which times there are; ``timestamp_languages`` of which of the languages (None: of all).
    ``live`` names what opens a transcript of sound that is still coming, ``(options of the first stage, **fields) ->``
    :class:`omni.live.LiveTranscript`; None: files only.
    """

    kind: Literal["transcription"] = "transcription"
    languages: tuple[str, ...] | None = None
    timestamps: tuple[Literal["segment", "word"], ...] = ()
    timestamp_languages: tuple[str, ...] | None = None
    prompt: bool = False
    temperature: bool = False
    seed: bool = False
    max_seconds: Annotated[float, Field(gt=0)] = 4 * 3600.0
    params: ImportPath | None = None
    live: ImportPath | None = None


Task = Annotated[Speech | Transcription, Field(discriminator="kind")]


class StageSpec(_Frozen):
    """One node of the graph. ``after`` names the stages it takes from (none: the request itself).

    ``options`` are defaults of the stage class's ``Options``; ``stream`` says that this stage gives a stream
    of items for one item (informative, checked by the conformance kit). ``paced_by`` names a later stage, an encoder or
    an AR one, that takes one item for each that this stage gives: the stages up to it hold together no more of them
    than one edge does, for items that are large. ``weights`` are the stage's own, in place of
    the recipe's; ``--set STAGE.weights=SOURCE`` names others.
    """

    name: Annotated[str, Field(pattern=_STAGE)]
    cls: ImportPath
    after: tuple[str, ...] = ()
    stream: bool = False
    paced_by: str | None = None
    weights: Weights | None = None
    options: dict[str, Any] = Field(default_factory=dict)

    def __init__(self, name: str, cls: str, **fields: Any) -> None:
        BaseModel.__init__(self, name=name, cls=cls, **fields)

    @field_validator("name")
    @classmethod
    def _not_reserved(cls, value: str) -> str:
        if value in RESERVED:
            raise ValueError(f"a stage cannot be called {value!r}")
        return value

    @field_validator("after", mode="before")
    @classmethod
    def _one_or_more(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    @field_validator("after")
    @classmethod
    def _each_once(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(value)) < len(value):
            raise ValueError("a stage comes after each of its sources once")
        return value


class Limits(_Frozen):
    """``max_requests`` run or wait at once; one more gets 429. ``timeout_s`` bounds a whole request."""

    max_requests: Annotated[int, Field(ge=1)] = 256
    timeout_s: Annotated[float, Field(gt=0)] = 3600.0


class Recipe(_Frozen):
    """A servable model: a graph of stages with its task, weights and limits.

    ``default`` recipes are what ``omni launch`` serves when none is named. ``task`` is what the declared weights do;
    where others may do more or less, ``task_of`` names a function ``(recipe, folder or None) -> task`` that reads from
    the weights at hand what they can. ``variants`` name recipes of the same plugin that do more than this one: errors
    about what this one lacks name them.
    """

    name: Annotated[str, Field(pattern=_NAME)]
    summary: str
    license: str
    task: Task
    stages: tuple[StageSpec, ...] = Field(min_length=1)
    weights: Weights | None = None
    requires: tuple[str, ...] = ()
    extra: str | None = None
    aliases: tuple[str, ...] = ()
    limits: Limits = Limits()
    samples: ImportPath | None = None
    default: bool = False
    task_of: ImportPath | None = None
    variants: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _graph(self) -> Recipe:
        seen: set[str] = set()
        for stage in self.stages:
            if stage.name in seen:
                raise ValueError(f"recipe {self.name!r}: two stages are named {stage.name!r}")
            seen.add(stage.name)
        for stage in self.stages:
            for source in stage.after:
                if source not in seen:
                    raise ValueError(f"stage {stage.name!r} comes after {source!r}, which does not exist")
            if stage.paced_by is not None and stage.paced_by not in seen:
                raise ValueError(f"stage {stage.name!r} is paced by {stage.paced_by!r}, which does not exist")
        self.order()
        outputs = self.outputs()
        if len(outputs) != 1:
            raise ValueError(f"recipe {self.name!r} needs exactly one last stage, it has {outputs}")
        return self

    def order(self) -> tuple[StageSpec, ...]:
        """The stages, every one after its sources. Raises ValueError that names the stages of a cycle."""
        done: list[StageSpec] = []
        names: set[str] = set()
        waiting = list(self.stages)
        while waiting:
            ready = [s for s in waiting if names.issuperset(s.after)]
            if not ready:
                raise ValueError(f"recipe {self.name!r}: a cycle runs through {[s.name for s in waiting]}")
            done += ready
            names.update(s.name for s in ready)
            waiting = [s for s in waiting if s.name not in names]
        return tuple(done)

    def outputs(self) -> list[str]:
        """Names of the stages that no other stage comes after."""
        sources = {name for stage in self.stages for name in stage.after}
        return [stage.name for stage in self.stages if stage.name not in sources]

    def all_weights(self) -> dict[str | None, Weights | None]:
        """The recipe's own (None), and by name those of the stages that have others."""
        found: dict[str | None, Weights | None] = {None: self.weights}
        found |= {stage.name: stage.weights for stage in self.stages if stage.weights is not None}
        return found

    def hint(self) -> str:
        """What to look at where this recipe lacks something, to put behind an error; empty without variants."""
        return f" (see the recipe {' or '.join(map(repr, self.variants))})" if self.variants else ""

    def stage(self, name: str) -> StageSpec:
        return next(s for s in self.stages if s.name == name)

    def pip_line(self) -> str:
        """The command that installs what the recipe needs beyond core."""
        if self.extra is not None:
            return f"pip install 'omni-recipes[{self.extra}]'"
        return f"pip install {' '.join(self.requires)}" if self.requires else "see the plugin's README"
