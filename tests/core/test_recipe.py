"""What a recipe may declare."""

from __future__ import annotations

import re
from typing import Any

import pytest
from pydantic import ValidationError

from omni import Limits, Recipe, Speech, StageSpec, Transcription, Voice, Weights


def stage(name: str, *after: str, **fields: Any) -> StageSpec:
    return StageSpec(name, "module:Class", after=after, **fields)


def recipe(*stages: StageSpec, **fields: Any) -> Recipe:
    values = {"name": "toy", "summary": "-", "license": "-", "task": Speech(sample_rate=24000), **fields}
    return Recipe(stages=stages, **values)


def test_the_order_puts_every_stage_after_its_sources() -> None:
    made = recipe(stage("d", "b", "c"), stage("b", "a"), stage("c", "a"), stage("a"))
    names = [spec.name for spec in made.order()]
    assert names[0] == "a"
    assert names[-1] == "d"
    assert made.outputs() == ["d"]
    assert made.stage("b").after == ("a",)


@pytest.mark.parametrize(
    ("stages", "words"),
    [
        ((), "at least 1 item"),
        ((stage("a"), stage("a")), "two stages are named 'a'"),
        ((stage("a", "b"),), "'a' comes after 'b', which does not exist"),
        ((stage("a"), stage("b", "a", "d"), stage("c", "b"), stage("d", "c")), "a cycle runs through ['b', 'c', 'd']"),
        ((stage("a", paced_by="b"),), "'a' is paced by 'b', which does not exist"),
        ((stage("a"), stage("b", "b")), "a cycle runs through ['b']"),
        ((stage("a"), stage("b", "a"), stage("c", "a")), "exactly one last stage, it has ['b', 'c']"),
    ],
    ids=["none", "twice", "unknown", "no pace", "cycle", "itself", "two ends"],
)
def test_graphs_that_cannot_run(stages: tuple[StageSpec, ...], words: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(words)):
        recipe(*stages)


@pytest.mark.parametrize("name", ["weights", "executor", "transport", "limits", "", "a.b", "A", "-a", "a b"])
def test_stage_names_that_settings_could_not_name(name: str) -> None:
    with pytest.raises(ValidationError):
        stage(name)


@pytest.mark.parametrize("path", ["module", "module:", ":Class", "mod ule:Class", "module:Class()", "a/b:C"])
def test_classes_are_named_by_module_and_name(path: str) -> None:
    with pytest.raises(ValidationError):
        StageSpec("a", path)


def test_one_source_may_be_a_string_and_none_comes_twice() -> None:
    assert StageSpec("b", "m:C", after="a").after == ("a",)
    with pytest.raises(ValidationError, match="each of its sources once"):
        stage("b", "a", "a")


def test_unknown_fields_are_refused_everywhere() -> None:
    for make in (
        lambda: StageSpec("a", "m:C", device="cpu"),
        lambda: Weights("a/b", branch="main"),
        lambda: Voice("a", gender="x"),
        lambda: Speech(sample_rate=8000, bitrate=1),
        lambda: Transcription(voices=()),
        lambda: Limits(max_request=1),
        lambda: recipe(stage("a"), licence="MIT"),
    ):
        with pytest.raises(ValidationError, match="Extra inputs are not permitted"):
            make()


def test_weights_come_from_somewhere() -> None:
    with pytest.raises(ValidationError, match="need a repo or a package"):
        Weights()
    assert Weights("owner/name").repo == "owner/name"
    assert Weights(package="module:function").package == "module:function"


def test_voices_may_be_plain_names() -> None:
    assert Speech(sample_rate=8000, voices=("a", Voice("b", name="B"))).voices == (Voice("a"), Voice("b", name="B"))


def test_tasks_are_told_apart_by_their_kind() -> None:
    plain = recipe(stage("a"), task=Transcription(languages=("en",))).model_dump()
    again = Recipe.model_validate(plain)
    assert isinstance(again.task, Transcription)
    assert again.task.languages == ("en",)


@pytest.mark.parametrize("fields", [{"max_requests": 0}, {"timeout_s": 0}, {"timeout_s": -1}])
def test_limits_have_limits(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Limits(**fields)


def test_the_pip_line() -> None:
    assert recipe(stage("a"), extra="fish").pip_line() == "pip install 'omni-recipes[fish]'"
    assert recipe(stage("a"), requires=("one>=1", "two")).pip_line() == "pip install one>=1 two"
