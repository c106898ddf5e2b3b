"""From a recipe's names to checked classes: everything that can be wrong is found before the first request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from omni.config import RecipeConfig, describe
from omni.errors import ConfigError, MissingDependency
from omni.messages import AudioChunk as Audio
from omni.messages import Joined, Message, SpeechRequest, TranscriptChunk, TranscriptionRequest
from omni.plugins import Plugins, import_path
from omni.recipe import Recipe, StageSpec
from omni.stages import AR, Aggregator, Encoder, Stage, StageOptions

_REQUESTS: dict[str, type[Message]] = {"speech": SpeechRequest, "transcription": TranscriptionRequest}
_RESULTS: dict[str, type[Message]] = {"speech": Audio, "transcription": TranscriptChunk}


@dataclass(frozen=True)
class CheckedStage:
    """A node of the graph with its class and validated options."""

    spec: StageSpec
    cls: type[Stage[Any, Any]]
    options: StageOptions


def request_type(recipe: Recipe) -> type[Message]:
    """What a recipe takes."""
    return _REQUESTS[recipe.task.kind]


def result_type(recipe: Recipe) -> type[Message]:
    """What a recipe's last stage gives."""
    return _RESULTS[recipe.task.kind]


def fit_task(config: RecipeConfig, folder: Path | None) -> RecipeConfig:
    """The recipe with the task that the weights in ``folder`` can do (see :attr:`Recipe.task_of`).

    Raises:
        ConfigError: the function that the recipe names does not exist, or gives another kind of task.
        WeightsError: the weights do not say.
    """
    recipe = config.recipe
    if recipe.task_of is None:
        return config
    what = f"task_of of recipe {recipe.name!r}"
    task = import_path(recipe.task_of, what)(recipe, folder)
    if type(task) is not type(recipe.task):
        raise ConfigError(f"{what}: {recipe.task_of} gave {type(task).__name__}, not {type(recipe.task).__name__}")
    return RecipeConfig(recipe.model_copy(update={"task": task}), config.settings)


def check(config: RecipeConfig) -> list[CheckedStage]:
    """Resolve and check every stage of a recipe, in an order in which each comes after its sources.

    Raises:
        ConfigError: a wrong name, an option that does not exist or is out of range, an edge whose types do not fit.
        MissingDependency: a stage's module needs a package that is not installed.
    """
    recipe = config.recipe
    stages = [_check_stage(config, spec) for spec in recipe.order()]
    by_name = {stage.spec.name: stage for stage in stages}
    for stage in stages:
        _check_inputs(recipe, stage, by_name)
        _check_pace(recipe, stage, by_name)
    last = by_name[recipe.outputs()[0]]
    if not issubclass(last.cls.output_type, result_type(recipe)):
        raise ConfigError(
            f"stage {last.spec.name!r} is the last of a {recipe.task.kind} recipe and must give "
            f"{result_type(recipe).__name__}, it gives {last.cls.output_type.__name__}"
        )
    return stages


def _class_of(recipe: Recipe, spec: StageSpec) -> type[Stage[Any, Any]]:
    what = f"stage {spec.name!r} of recipe {recipe.name!r}"
    try:
        cls = import_path(spec.cls, what)
    except MissingDependency as error:
        raise MissingDependency(f"{error.message}: {recipe.pip_line()}") from error
    if not (isinstance(cls, type) and issubclass(cls, Stage) and hasattr(cls, "kind")):
        raise ConfigError(f"{what}: {spec.cls!r} is not one of the five kinds of stage")
    return cls


def _check_stage(config: RecipeConfig, spec: StageSpec) -> CheckedStage:
    cls = _class_of(config.recipe, spec)
    what = f"stage {spec.name!r} of recipe {config.recipe.name!r}"
    if not hasattr(cls, "input_type"):
        raise ConfigError(f"{what}: {cls.__name__} must name its message types: {cls.__bases__[0].__name__}[In, Out]")
    try:
        options = cls.Options.model_validate(config.options(spec.name))
    except ValidationError as error:
        known = ", ".join(cls.Options.model_fields) or "none"
        raise ConfigError(f"{what}: {describe(error)} (options of this stage: {known})") from error
    return CheckedStage(spec, cls, options)


def _check_inputs(recipe: Recipe, stage: CheckedStage, by_name: dict[str, CheckedStage]) -> None:
    spec, wanted = stage.spec, stage.cls.input_type
    if not spec.after:
        sources = {"the request": request_type(recipe)}
    elif len(spec.after) > 1 and not issubclass(stage.cls, Aggregator):
        sources = {" + ".join(spec.after): Joined}
    else:
        sources = {name: by_name[name].cls.output_type for name in spec.after}
    for name, given in sources.items():
        if not issubclass(given, wanted):
            raise ConfigError(
                f"recipe {recipe.name!r}: stage {spec.name!r} takes {wanted.__name__}, but {name!r} gives "
                f"{given.__name__}"
            )


def _check_pace(recipe: Recipe, stage: CheckedStage, by_name: dict[str, CheckedStage]) -> None:
    spec = stage.spec
    if spec.paced_by is None:
        return
    what = f"recipe {recipe.name!r}: stage {spec.name!r} is paced by {spec.paced_by!r}, which"
    later, found = {spec.name}, by_name[spec.paced_by]
    for other in recipe.order():
        if later.intersection(other.after):
            later.add(other.name)
    if spec.paced_by == spec.name or spec.paced_by not in later:
        raise ConfigError(f"{what} does not come after it")
    if not issubclass(found.cls, AR | Encoder):
        raise ConfigError(f"{what} is {found.cls.kind}: only encoders and AR stages set a pace")


def choose_engine(configs: Sequence[RecipeConfig], engine: str, source: str) -> None:
    """Set the engine of every AR stage that ``--set`` does not give one.

    Raises:
        ConfigError: no recipe has an AR stage.
    """
    found = False
    for config in configs:
        for spec in config.recipe.stages:
            if not issubclass(_class_of(config.recipe, spec), AR):
                continue
            found = True
            setting = config.settings.get(f"{spec.name}.engine")
            if setting is None or setting.source != "--set":
                config.set(f"{spec.name}.engine", engine, source)
    if not found:
        names = ", ".join(config.recipe.name for config in configs)
        raise ConfigError(f"{source}: no stage of {names} is autoregressive, so there is no engine to choose")


def engine_for(plugins: Plugins, stage: CheckedStage) -> tuple[str, Any, str]:
    """Choose the engine of an AR stage: ``(name, factory, reason)``.

    A factory may offer ``probe() -> str | None``, which says why it cannot run here, and
    ``preference(stage options) -> int``; ``auto`` takes the most preferred one that can run. One with ``takes_source``
    cannot run a stage without :meth:`~omni.stages.AR.source`.
    """
    registry = plugins.engines()
    options: Any = stage.options
    what = f"stage {stage.spec.name!r}"
    for name in options.engine_options():
        if name not in registry:
            known = ", ".join([*type(options).model_fields, *registry])
            raise ConfigError(f"{what}: there is no option or engine {name!r}; there are: {known}")
    if options.engine != "auto":
        if options.engine not in registry:
            raise ConfigError(f"{what}: there is no engine {options.engine!r}; there are: {', '.join(registry)}")
        factory = import_path(registry[options.engine], f"engine {options.engine!r}")
        if reason := _probe(factory):
            raise ConfigError(f"{what}: engine {options.engine!r} cannot run here: {reason}")
        return options.engine, factory, "asked for"
    refused: list[str] = []
    candidates: list[tuple[int, str, Any]] = []
    for name, path in registry.items():
        try:
            factory = import_path(path, f"engine {name!r}")
            reason = _probe(factory)
            if not reason and getattr(factory, "takes_source", False) and stage.cls.source is AR.source:  # type: ignore[attr-defined]
                reason = "the stage has no source() for it"
        except ConfigError as error:
            reason = error.message
        if reason:
            refused.append(f"{name}: {reason}")
        else:
            prefer = getattr(factory, "preference", None)
            candidates.append((prefer(options) if prefer is not None else 0, name, factory))
    if not candidates:
        raise ConfigError(f"{what}: no AR engine can run here ({'; '.join(refused)})")
    _, name, factory = max(candidates, key=lambda c: c[0])
    others = [f"{other}: less suited to this machine" for _, other, _ in candidates if other != name]
    return name, factory, "; ".join(["auto", *others, *refused])


def _probe(factory: Any) -> str | None:
    probe = getattr(factory, "probe", None)
    return probe() if probe is not None else None
