"""Layers of settings, where each value came from, and settings that fit nothing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from omni import ConfigError, Limits, Recipe, Speech, StageSpec, Weights
from omni.config import RecipeConfig, configure, parse_set, read_file


def recipe(name: str, *stages: str, **options: Any) -> Recipe:
    return Recipe(
        name=name,
        summary="-",
        license="-",
        task=Speech(sample_rate=8000),
        stages=tuple(
            StageSpec(stage, "m:C", after=stages[i - 1 : i] if i else (), options=options.get(stage, {}))
            for i, stage in enumerate(stages)
        ),
        limits=Limits(max_requests=7),
    )


VOICE = recipe("voice", "text", "vocoder", vocoder={"device": "cpu", "engine": {"pages": 4, "size": 16}})
EARS = recipe("ears", "text", "decode")


def one(*sets: str, file: dict[str, Any] | None = None, weights: tuple[str, ...] = ()) -> RecipeConfig:
    (config,) = configure([VOICE], file=file and {"voice": file}, file_name="my.yaml", sets=sets, weights=weights)
    return config


def test_without_settings_the_recipe_speaks() -> None:
    config = one()
    assert config.options("vocoder") == {"device": "cpu", "engine": {"pages": 4, "size": 16}}
    assert config.options("text") == {}
    assert config.limits() == Limits(max_requests=7)
    assert config.text("weights") is None
    assert config.text("transport", "inproc") == "inproc"


def test_the_command_line_wins_over_the_file_and_the_file_over_the_recipe() -> None:
    file = {"vocoder": {"device": "cuda:0", "engine": {"pages": 8}}, "limits": {"timeout_s": 5}, "text": {"a": 1}}
    config = one("vocoder.device=cuda:1", "vocoder.engine.extra=yes", file=file)
    assert config.options("vocoder") == {"device": "cuda:1", "engine": {"pages": 8, "size": 16, "extra": True}}
    assert config.options("text") == {"a": 1}
    assert config.limits() == Limits(max_requests=7, timeout_s=5)
    assert {path: setting.source for path, setting in config.settings.items()} == {
        "vocoder.device": "--set",
        "vocoder.engine.pages": "my.yaml",
        "vocoder.engine.extra": "--set",
        "limits.timeout_s": "my.yaml",
        "text.a": "my.yaml",
    }
    assert VOICE.stage("vocoder").options["engine"] == {"pages": 4, "size": 16}, "the recipe itself is not touched"


def test_a_later_value_replaces_what_was_set_below_and_above_it() -> None:
    file = {"vocoder": {"engine": {"pages": 8, "size": 1}}}
    assert one("vocoder.engine=off", file=file).options("vocoder")["engine"] is False
    config = one("vocoder.engine=off", "vocoder.engine.pages=2", file=file)
    assert config.options("vocoder")["engine"] == {"pages": 2, "size": 16}
    assert one("vocoder.engine={pages: 3}").options("vocoder")["engine"] == {"pages": 3, "size": 16}
    assert one("vocoder.engine={}").options("vocoder")["engine"] == {"pages": 4, "size": 16}
    assert file == {"vocoder": {"engine": {"pages": 8, "size": 1}}}, "the file's content is not touched"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a.b=1", (None, "a.b", 1)),
        ("a.b=1.5", (None, "a.b", 1.5)),
        ("a.b=cuda:1", (None, "a.b", "cuda:1")),
        ("a.b=x=y", (None, "a.b", "x=y")),
        ("a.b=", (None, "a.b", None)),
        ("a.b=[1, 2]", (None, "a.b", [1, 2])),
        ("a.b=true", (None, "a.b", True)),
        ("voice/a.b=1", ("voice", "a.b", 1)),
    ],
)
def test_values_are_yaml(text: str, expected: tuple[str | None, str, Any]) -> None:
    assert parse_set(text) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("vocoder.device", "write stage.field=value"),
        ("=3", "write stage.field=value"),
        ("vocoder.device=[1", "not valid YAML"),
        ("vocder.device=cpu", "no served recipe has a stage 'vocder'; there are: text, vocoder"),
        ("vocoder=cpu", "takes a mapping of fields, or set vocoder.FIELD"),
        ("transport.size=3", "'transport' takes one string"),
        ("executor=3", "'executor' takes one string"),
        ("limits=3", "takes a mapping"),
        ("vocoder.engine={1: 2}", "cannot be the name of a field"),
        ("vocoder.engine={a.b: 2}", "cannot be the name of a field"),
        ("nobody/vocoder.device=cpu", "recipe 'nobody' is not served; served are: voice"),
        ("voice/vocder.device=cpu", "recipe 'voice' has no stage 'vocder'; it has: text, vocoder"),
    ],
)
def test_settings_that_fit_nothing_are_errors_that_say_so(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)) as caught:
        one(text)
    assert "--set" in caught.value.message


def test_a_recipe_names_the_one_that_has_more_stages() -> None:
    less = VOICE.model_copy(update={"variants": ("voice-and-more",)})
    for text in ("aligner.weights=x", "voice/aligner.weights=x"):
        with pytest.raises(ConfigError, match=r"\(see the recipe 'voice-and-more'\)"):
            configure([less], sets=[text])


def test_settings_may_name_a_recipe_by_an_alias() -> None:
    known = VOICE.model_copy(update={"aliases": ("speaker", "owner/speaker")})
    file = {"speaker": {"text": {"a": 1}}}
    (config,) = configure([known], file=file, sets=["owner/speaker/text.b=2"], weights=["speaker=folder"])
    assert config.options("text") == {"a": 1, "b": 2}
    assert config.text("weights") == "folder"


def test_a_setting_goes_to_the_one_recipe_that_has_the_stage() -> None:
    voice, ears = configure([VOICE, EARS], sets=["decode.beam=5", "vocoder.device=x", "ears/text.a=1"])
    assert ears.options("decode") == {"beam": 5}
    assert voice.options("vocoder")["device"] == "x"
    assert (voice.options("text"), ears.options("text")) == ({}, {"a": 1})
    with pytest.raises(ConfigError, match=r"fits several recipes \(voice, ears\); write --set RECIPE/text\.a"):
        configure([VOICE, EARS], sets=["text.a=1"])


def test_limits_executor_and_transport_go_to_all() -> None:
    for config in configure([VOICE, EARS], sets=["limits.max_requests=3", "transport=codec"]):
        assert config.limits().max_requests == 3
        assert config.text("transport") == "codec"


@pytest.mark.parametrize(("field", "words"), [("max_requests=0", "max_requests"), ("max_reqests=1", "max_reqests")])
def test_limits_are_checked(field: str, words: str) -> None:
    with pytest.raises(ConfigError, match=f"limits of recipe 'voice': {words}"):
        one(f"limits.{field}").limits()


def test_weights() -> None:
    assert one(weights=("/data/w",)).text("weights") == "/data/w"
    assert one(weights=("voice=owner/name@main",)).text("weights") == "owner/name@main"
    assert one(weights=("/data/run=3/w",)).text("weights") == "/data/run=3/w"
    assert one(weights=("voice=/data/run=3",)).text("weights") == "/data/run=3"
    assert one("weights=/data/w").settings["weights"].source == "--set"
    voice, ears = configure([VOICE, EARS], weights=["ears=/e", "voice=/v"])
    assert (voice.text("weights"), ears.text("weights")) == ("/v", "/e")
    with pytest.raises(ConfigError, match="write --weights RECIPE=SOURCE"):
        configure([VOICE, EARS], weights=["/e"])
    with pytest.raises(ConfigError, match="recipe 'nose' is not served"):
        one(weights=("nose=/n",))


def test_weights_of_a_stage() -> None:
    stages = tuple(
        stage.model_copy(update={"weights": Weights("own/er")}) if stage.name == "vocoder" else stage
        for stage in VOICE.stages
    )
    config = RecipeConfig(VOICE.model_copy(update={"stages": stages}))
    assert config.text("vocoder.weights") is None
    config.set("vocoder.weights", "a/b", "--set")
    assert config.text("vocoder.weights") == "a/b"
    assert "weights" not in config.options("vocoder"), "it is no option of the stage's class"
    for path, value in (("vocoder.weights", 3), ("vocoder.weights.x", "a"), ("vocoder", {"weights": {"x": 1}})):
        with pytest.raises(ConfigError, match=r"'vocoder\.weights' takes one string"):
            config.set(path, value, "--set")
    config.set("text.weights", "x", "--set")
    assert config.options("text") == {"weights": "x"}, "a stage without weights of its own may have such an option"


def test_a_file_is_read_and_its_settings_are_named_after_it(tmp_path: Path) -> None:
    path = tmp_path / "my.yaml"
    path.write_text("server: {port: 80}\nrecipes:\n  voice:\n    weights: /w\n    vocoder: {device: cuda}\n  other:\n")
    content = read_file(path)
    assert content["server"] == {"port": 80}
    (config,) = configure([VOICE], file=content["recipes"], file_name=str(path))
    assert config.text("weights") == "/w"
    assert config.settings["vocoder.device"].source == str(path)


@pytest.mark.parametrize("text", ["", "# nothing\n", "server:\n", "recipes: {}\n"])
def test_an_empty_file_sets_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "my.yaml").write_text(text)
    assert read_file(tmp_path / "my.yaml") == {"server": {}, "recipes": {}}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"recipes: [", "while parsing"),
        (b"- a\n", "must hold a mapping"),
        (b"recipe: {}\n", "unknown key 'recipe'; known are server and recipes"),
        (b"recipes: [a]\n", "recipes must be a mapping"),
        (b"\xff\xfe\xff", "codec can't decode"),
        (b"a: !!python/object/apply:os.getcwd []\n", "could not determine a constructor"),
    ],
)
def test_files_that_say_something_else_are_errors(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "my.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=re.escape(words)) as caught:
        read_file(path)
    assert str(path) in caught.value.message


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_file(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ({"vocder": {"device": "cpu"}}, "my.yaml: 'vocder': recipe 'voice' has no stage 'vocder'"),
        ({"vocoder": "cpu"}, "my.yaml: 'vocoder' takes a mapping"),
        ({"weights": 3}, "my.yaml: 'weights' takes one string"),
    ],
)
def test_a_file_that_fits_nothing_is_named(file: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        one(file=file)
    with pytest.raises(ConfigError, match=r"my\.yaml: recipe 'voice' takes a mapping"):
        configure([VOICE], file={"voice": ["a"]}, file_name="my.yaml")
