"""``--engine`` is ``--set STAGE.engine=`` for every stage that has an engine."""

from __future__ import annotations

import json

import pytest


@pytest.fixture
def toy(installed) -> str:
    installed.add("toy-tts", "toy_tts")
    return "toy-tts"


def engines(omni, *args) -> dict[str, tuple[str, str]]:
    ran = omni("config", "explain", "--json", *args)
    assert ran.code == 0, ran.err
    lines = json.loads(ran.out)
    return {line["setting"]: (line["value"], line["source"]) for line in lines if line["setting"].endswith(".engine")}


def test_it_reaches_every_ar_stage_and_no_other(omni, toy, tmp_path) -> None:
    both = ("--recipe", toy, "--recipe", "toy-voice")
    assert engines(omni, *both) == {f"{toy}/speak.engine": ("toy", "recipe")}
    assert engines(omni, *both, "--engine", "torch") == {f"{toy}/speak.engine": ("torch", "--engine")}
    exact = ("--set", "speak.engine=auto")
    assert engines(omni, *both, "--engine", "torch", *exact) == {f"{toy}/speak.engine": ("auto", "--set")}
    file = tmp_path / "omni.yaml"
    file.write_text(f"recipes: {{{toy}: {{speak: {{engine: toy}}}}}}")
    assert engines(omni, "--config", file, "--engine", "torch") == {f"{toy}/speak.engine": ("torch", "--engine")}


def test_where_it_makes_no_sense_it_is_refused(omni, toy) -> None:
    ran = omni("config", "explain", "--recipe", "toy-voice", "--engine", "torch")
    assert ran.code != 0
    assert "--engine: no stage of toy-voice is autoregressive" in ran.err
    ran = omni("say", "Hi.", "-o", "x.wav", "--url", "http://127.0.0.1:9", "--engine", "torch")
    assert ran.code != 0
    assert "--engine" in ran.err
