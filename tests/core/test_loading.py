"""Everything that can be wrong with a recipe is found when it is loaded, and the error names the stage."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import toy_stages
import toy_tts
from pydantic import BaseModel

from omni import ConfigError, MissingDependency, Recipe, Speech, StageSpec, Transcription
from omni.config import RecipeConfig
from omni.loading import check, engine_for
from omni.plugins import Plugins, params_model


def chain(*specs: StageSpec, **fields: Any) -> Recipe:
    values = {"name": "toy", "summary": "-", "license": "-", "task": Speech(sample_rate=8000), **fields}
    return Recipe(stages=specs, **values)


SPLIT = StageSpec("split", "toy_stages:Split")
SPEAK = StageSpec("speak", "toy_stages:Speak", after="split")


def test_a_good_recipe_is_checked_in_order_with_its_options() -> None:
    config = RecipeConfig(chain(StageSpec("speak", "toy_stages:Speak", after="split", options={"workers": 3}), SPLIT))
    config.set("speak.max_batch", 5, "test")
    stages = check(config)
    assert [(stage.spec.name, stage.cls) for stage in stages] == [
        ("split", toy_stages.Split),
        ("speak", toy_stages.Speak),
    ]
    assert (stages[1].options.workers, stages[1].options.max_batch) == (3, 5)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("toy_staegs:Split", "there is no module 'toy_staegs'"),
        ("toy_stages:Spilt", "module 'toy_stages' has no 'Spilt'"),
        ("toy_stages:plan", "is not one of the five kinds of stage"),
        ("toy_stages:NoStage", "is not one of the five kinds of stage"),
        ("omni.stages:Stage", "is not one of the five kinds of stage"),
        ("toy_stages:NoMessages", "must name its message types: Preprocess[In, Out]"),
    ],
)
def test_a_wrong_class_names_the_stage(path: str, words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)) as caught:
        check(RecipeConfig(chain(SPLIT, StageSpec("middle", path, after="split"))))
    assert "stage 'middle' of recipe 'toy'" in caught.value.message


def test_a_module_that_needs_a_package_gives_the_pip_line(module: Callable[[str, str], None]) -> None:
    module("needy_stages", "import rare_package_of_the_test")
    with pytest.raises(MissingDependency) as caught:
        check(RecipeConfig(chain(StageSpec("needy", "needy_stages:Needy"), extra="rare")))
    for words in ("stage 'needy'", "'rare_package_of_the_test'", "pip install 'omni-recipes[rare]'"):
        assert words in caught.value.message


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"workers": 0}, "workers: Input should be greater than or equal to 1"),
        ({"workers": "many"}, "workers: Input should be a valid integer"),
        ({"wrokers": 2}, "wrokers: Extra inputs are not permitted (options of this stage: workers, max_batch"),
    ],
)
def test_a_wrong_option_names_the_stage_and_the_option(options: dict[str, Any], words: str) -> None:
    config = RecipeConfig(chain(SPLIT, StageSpec("speak", "toy_stages:Speak", after="split", options=options)))
    with pytest.raises(ConfigError, match=re.escape(words)) as caught:
        check(config)
    assert "stage 'speak'" in caught.value.message
    config = RecipeConfig(chain(SPLIT, SPEAK))
    for name, value in options.items():
        config.set(f"speak.{name}", value, "--set")
    with pytest.raises(ConfigError, match=re.escape(words)):
        check(config)


@pytest.mark.parametrize(
    ("stages", "words"),
    [
        (("split:Split", "again:Split"), "stage 'again' takes SpeechRequest, but 'split' gives Word"),
        (("speak:Speak",), "stage 'speak' takes Word, but 'the request' gives SpeechRequest"),
        (
            ("split:Split", "a:Same<split", "b:Same<split", "speak:Speak<a,b"),
            "stage 'speak' takes Word, but 'a + b' gives Joined",
        ),
        (
            ("split:Split", "a:Same<split", "b:Speak<split", "join:Join<a,b"),
            "stage 'join' takes AudioChunk, but 'a' gives Word",
        ),
        (("split:Split", "pair:Pair<split"), "stage 'pair' takes Joined, but 'split' gives Word"),
        (("split:Split>split", "speak:Speak"), "stage 'split' is paced by 'split', which does not come after it"),
        (("split:Split", "same:Same>split", "speak:Speak"), "'same' is paced by 'split', which does not come after it"),
        (("split:Split>same", "same:Same", "speak:Speak"), "'same', which is preprocess: only encoders and AR stages"),
        (("split:Split", "same:Same"), "stage 'same' is the last of a speech recipe and must give AudioChunk"),
    ],
)
def test_edges_that_do_not_fit_name_both_ends(stages: tuple[str, ...], words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        check(RecipeConfig(toy_stages.recipe(*stages)))


def test_the_request_and_the_result_depend_on_the_task() -> None:
    with pytest.raises(ConfigError, match="'the request' gives TranscriptionRequest"):
        check(RecipeConfig(toy_stages.recipe("split:Split", "speak:Speak", task=Transcription())))


class Factory:
    def __init__(self, preference: int, refusal: str | None = None) -> None:
        self._preference = preference
        self._refusal = refusal

    def probe(self) -> str | None:
        return self._refusal

    def preference(self, options: Any) -> int:
        return self._preference

    def __call__(self, model: Any, options: Any) -> Any:
        raise AssertionError("not here")


class Elsewhere(Factory):
    takes_source = True


SLOW, FAST, BEST = Factory(1), Factory(5), Factory(9, "needs a GPU")
ELSEWHERE = Elsewhere(20)


class Engines:
    """In place of the plugins: three engines, and one whose package is missing."""

    def __init__(self, **more: str) -> None:
        self._engines = {name: f"{__name__}:{name.upper()}" for name in ("slow", "fast", "best")}
        self._engines.update(more)

    def engines(self) -> dict[str, str]:
        return self._engines


def ar(**options: Any) -> Any:
    recipe = toy_tts.recipe()
    config = RecipeConfig(recipe)
    for name, value in {"engine": "auto", **options}.items():
        config.set(f"speak.{name}", value, "test")
    (stage,) = [stage for stage in check(config) if stage.spec.name == "speak"]
    return stage


def test_auto_takes_the_most_preferred_engine_that_can_run_and_says_why() -> None:
    engines: Any = Engines(missing="nowhere_to_be_found:create")
    name, factory, reason = engine_for(engines, ar())
    assert (name, factory) == ("fast", FAST)
    assert "best: needs a GPU" in reason
    assert "missing: engine 'missing': there is no module" in reason
    assert reason.startswith("auto; ")


def test_auto_takes_no_engine_that_the_stage_cannot_be_built_for() -> None:
    engines: Any = Engines(elsewhere=f"{__name__}:ELSEWHERE")
    name, _, reason = engine_for(engines, ar())
    assert name == "fast"
    assert "elsewhere: the stage has no source() for it" in reason


def test_an_engine_that_is_asked_for() -> None:
    engines: Any = Engines()
    assert engine_for(engines, ar(engine="slow")) == ("slow", SLOW, "asked for")
    with pytest.raises(ConfigError, match="stage 'speak': engine 'best' cannot run here: needs a GPU"):
        engine_for(engines, ar(engine="best"))
    with pytest.raises(ConfigError, match="stage 'speak': there is no engine 'warp'; there are: slow, fast, best"):
        engine_for(engines, ar(engine="warp"))


def test_options_of_an_engine_that_does_not_exist_are_refused() -> None:
    engines: Any = Engines()
    assert engine_for(engines, ar(fast={"pages": 3}))[0] == "fast"
    with pytest.raises(ConfigError, match="stage 'speak': there is no option or engine 'fats'; there are: engine,"):
        engine_for(engines, ar(fats={"pages": 3}))


def test_no_engine_at_all() -> None:
    engines: Any = Engines()
    for name in ("slow", "fast"):
        del engines.engines()[name]
    with pytest.raises(ConfigError, match=r"stage 'speak': no AR engine can run here \(best: needs a GPU\)"):
        engine_for(engines, ar())


def test_the_engines_that_core_brings_can_be_looked_up() -> None:
    assert "torch" in Plugins.load([]).engines()


def test_parameter_models_are_resolved_by_name() -> None:
    assert issubclass(params_model(toy_tts.recipe()), BaseModel)
    assert params_model(chain(SPLIT, SPEAK)) is None
