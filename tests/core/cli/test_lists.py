"""``omni recipes``, ``omni plugins``, ``omni pull``: what is there, and why something is not."""

from __future__ import annotations

import json

BROKEN = """
def helper():
    raise RuntimeError("no such luck")

helper()
"""

MANY_LIMITS = """
from typing import Annotated, Literal
from pydantic import BaseModel, Field
from omni import Recipe, Speech, StageSpec, Weights, hookimpl

class Params(BaseModel):
    heat: Annotated[float, Field(gt=0, le=2, description="How hot.")] = 1.5
    style: Literal["calm", "loud"] | None = None
    tags: Annotated[list[str], Field(max_length=3)]

@hookimpl
def omni_recipes():
    return [Recipe(name="limited", summary="s", license="MIT", extra="demo", aliases=("lim",),
                   weights=Weights("own/er", revision="abc", access="ask nicely",
                                   package="carrier:path", pip="carrier==1"),
                   task=Speech(sample_rate=16000, voices=("v",), native_speed=(0.5, 2), params="with_limits:Params"),
                   stages=[StageSpec("b", "x:B", after="a", stream=True), StageSpec("a", "x:A", options={"k": 1})])]
"""


def test_recipes_lists_all(omni) -> None:
    lines = omni("recipes").out.splitlines()
    assert [line.split()[:2] for line in lines] == [
        ["RECIPE", "TASK"],
        ["toy-ears", "transcription"],
        ["toy-voice", "speech"],
    ]


def test_recipes_as_json(omni) -> None:
    found = json.loads(omni("recipes", "--json").out)
    assert [recipe["name"] for recipe in found] == ["toy-ears", "toy-voice"]
    assert found[1]["plugin"] == "toy-voice"
    assert found[1]["task"]["voices"][0]["id"] == "sine"


def test_show_tells_all(omni, installed, module) -> None:
    module("with_limits", MANY_LIMITS)
    installed.add("with-limits", "with_limits")
    text = omni("recipes", "show", "limited").out
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "task speech (text in, audio out), 16000 Hz, mono" in lines
    assert "weights in a package (carrier==1), or on the Hub: own/er at abc; ask nicely" in lines
    assert "install pip install 'omni-recipes[demo]'" in lines
    assert "also called lim" in lines
    assert "speed the model's own from 0.5 to 2" in lines
    assert lines.index("request -> a x:A k=1") < lines.index("a -> b x:B streams"), "in working order"
    assert "heat number > 0, <= 2 1.5 How hot." in lines
    assert "style one of calm, loud null" in lines
    assert "tags array at most 3 items required" in lines


def test_show_as_json_has_the_schema(omni) -> None:
    shown = json.loads(omni("recipes", "show", "toy-voice", "--json").out)
    assert shown["params"]["properties"]["pitch"]["maximum"] == 2.0


def test_plugins_lists_distributions_and_recipes(omni) -> None:
    ran = omni("plugins")
    assert ran.code == 0
    assert [line.split() for line in ran.out.splitlines()][1:] == [
        ["toy-ears", "?", "?", "ok", "toy-ears"],
        ["toy-voice", "?", "?", "ok", "toy-voice"],
    ]


def test_broken_plugin_is_reported_and_leaves_the_others(omni, installed, module) -> None:
    module("broken", BROKEN)
    installed.add("broken", "broken")
    ran = omni("plugins")
    assert ran.code == 1
    assert ["broken", "?", "?", "FAILED", "-"] in [line.split() for line in ran.out.splitlines()]
    assert "in helper" in ran.out, "the traceback"
    assert "RuntimeError: no such luck" in ran.out
    ran = omni("recipes")
    assert ran.code == 0
    assert "toy-voice" in ran.out
    assert ran.err == "warning: plugin 'broken' failed: RuntimeError: no such luck (see: omni plugins)\n"


def test_pull_of_nothing(omni) -> None:
    assert omni("pull", "toy-voice") == (0, "", "recipe 'toy-voice' needs no weights\n")


def test_pull_prints_the_folder(omni, tmp_path) -> None:
    assert omni("pull", "toy-voice", "--weights", tmp_path) == (0, f"{tmp_path}\n", "")


def test_pull_of_what_is_not_there(omni, tmp_path) -> None:
    ran = omni("pull", "toy-voice", "--weights", tmp_path / "nothing")
    assert ran.code == 1
    assert "there is no such folder" in ran.err


def test_pull_offline_says_what_to_do(omni, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    ran = omni("pull", "toy-voice", "--weights", "someone/something")
    assert ran.code == 1
    assert len(ran.err.splitlines()) == 1
    assert "the Hub cannot be reached" in ran.err
    assert "--weights DIR" in ran.err
