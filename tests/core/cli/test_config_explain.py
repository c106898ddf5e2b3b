"""Every layer of settings shows, and so does every way to get one wrong."""

from __future__ import annotations

import json

import pytest

LAYERS = """
server:
  port: 8100
  stall_seconds: 20
recipes:
  toy-voice:
    synth:
      volume: 0.5
      note_seconds: 0.02
    limits:
      max_requests: 7
  toy-ears:
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "omni.yaml"
    path.write_text(LAYERS)
    return path


def explained(omni, *args) -> dict[str, tuple[object, str]]:
    ran = omni("config", "explain", "--json", *args)
    assert ran.code == 0, ran.err
    return {line["setting"]: (line["value"], line["source"]) for line in json.loads(ran.out)}


def test_layers(omni, file, monkeypatch) -> None:
    monkeypatch.setenv("OMNI_API_KEY", "sesame")
    found = explained(omni, "--config", file, "--set", "synth.volume=0.25", "--port", 8200)
    assert found["server.port"] == (8200, "--port")
    assert found["server.stall_seconds"] == (20.0, str(file))
    assert found["server.host"] == ("127.0.0.1", "default")
    assert found["server.api_key"] == ("**********", "OMNI_API_KEY")
    assert found["toy-voice/synth.volume"] == (0.25, "--set")
    assert found["toy-voice/synth.note_seconds"] == (0.02, str(file))
    assert found["toy-voice/limits.max_requests"] == (7, str(file))
    assert found["toy-voice/synth.max_chunk"] == (8, "default")
    assert found["toy-voice/executor"] == ("inprocess", "default")
    assert found["toy-ears/hear.max_batch"] == (16, "default"), "the file names this recipe too"


def test_recipe_option_wins_over_the_file(omni, file) -> None:
    assert not any(name.startswith("toy-ears/") for name in explained(omni, "--config", file, "--recipe", "toy-voice"))


def test_same_stage_in_two_recipes_needs_the_recipe(omni, installed, module) -> None:
    module(
        "twin",
        "from omni import hookimpl\nimport toy_voice\n@hookimpl\ndef omni_recipes():\n"
        "    return [toy_voice.omni_recipes()[0].model_copy(update={'name': 'twin'})]\n",
    )
    installed.add("twin", "twin")
    both = ("--recipe", "toy-voice", "--recipe", "twin")
    ran = omni("config", "explain", *both, "--set", "synth.volume=0.3")
    assert ran.code == 1
    assert "fits several recipes (toy-voice, twin)" in ran.err
    found = explained(omni, *both, "--set", "twin/synth.volume=0.3")
    assert found["twin/synth.volume"] == (0.3, "--set")
    assert found["toy-voice/synth.volume"] == (0.2, "default")


def test_a_recipe_s_own_option_says_so(omni, installed, module) -> None:
    module(
        "louder",
        "from omni import hookimpl\nimport toy_voice\n@hookimpl\ndef omni_recipes():\n"
        "    r = toy_voice.omni_recipes()[0]\n"
        "    s = r.stages[1].model_copy(update={'options': {'volume': 0.9}})\n"
        "    return [r.model_copy(update={'name': 'louder', 'stages': (r.stages[0], s)})]\n",
    )
    installed.add("louder", "louder")
    assert explained(omni, "--recipe", "louder")["louder/synth.volume"] == (0.9, "recipe")


def test_table(omni) -> None:
    lines = omni("config", "explain", "--recipe", "toy-voice").out.splitlines()
    assert lines[0].split() == ["SETTING", "VALUE", "FROM"]
    assert ["toy-voice/synth.volume", "0.2", "default"] in [line.split() for line in lines]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--set", "nothing.volume=1"], "no served recipe has a stage 'nothing'"),
        (["--set", "synth.loudness=1"], "loudness"),
        (["--set", "synth.volume=7"], "volume"),
        (["--set", "synth.volume"], "write stage.field=value"),
        (["--set", "other/synth.volume=1"], "recipe 'other' is not served"),
        (["--set", "limits.max_requests=0"], "max_requests"),
        (["--recipe", "nothing"], "there is no recipe 'nothing'"),
        (["--recipe", "toy-voice"], "--recipe toy-voice is given twice"),
        (["--port", "70000"], "--port: port"),
        (["--max-upload-mb", "-1"], "--max-upload-mb: max_upload_mb"),
        (["--weights", "other=/tmp"], "recipe 'other' is not served"),
    ],
)
def test_refused(omni, args, message) -> None:
    ran = omni("config", "explain", "--recipe", "toy-voice", *args)
    assert ran.code == 1
    assert len(ran.err.splitlines()) == 1
    assert message in ran.err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("recipes: {nothing: {}}", "there is no recipe 'nothing'"),
        ("recipes: {toy-voice: 3}", "recipes.toy-voice must be a mapping"),
        ("servers: {}", "unknown key 'servers'"),
        ("server: {colour: red}", "colour"),
        ("server: {port: x}", "omni.yaml: port"),
        ("recipes: {toy-voice: {synth: {volume: -1}}}", "volume"),
        (": :", "--config"),
    ],
)
def test_refused_file(omni, file, content, message) -> None:
    file.write_text(content)
    ran = omni("config", "explain", "--config", file)
    assert ran.code == 1
    assert len(ran.err.splitlines()) == 1
    assert message in ran.err


def test_no_default_recipe(omni) -> None:
    ran = omni("config", "explain")
    assert ran.code == 1
    assert "name one with --recipe; installed: toy-ears, toy-voice" in ran.err


def test_an_unknown_setting_of_the_server_is_refused_with_the_known_ones(omni, tmp_path) -> None:
    (tmp_path / "omni.yaml").write_text("server: {prot: 1}")
    ran = omni("config", "explain", "--config", tmp_path / "omni.yaml")
    assert ran.code == 1
    assert "omni.yaml: prot: " in ran.err
    assert "(settings of the server: host, port, api_key, " in ran.err
