"""``omni new-plugin`` writes what works, and nothing where it must not."""

from __future__ import annotations

import ast
import tomllib

import pytest


@pytest.mark.parametrize("task", ["speech", "transcription"])
def test_files(omni, tmp_path, task) -> None:
    ran = omni("new-plugin", "bird-song", "--task", task, "--dir", tmp_path)
    assert ran.code == 0
    assert "omni launch --recipe bird-song" in ran.out
    folder = tmp_path / "bird-song"
    project = tomllib.loads((folder / "pyproject.toml").read_text())
    assert project["project"]["name"] == "bird-song"
    assert project["project"]["entry-points"]["omni"] == {"bird-song": "bird_song"}
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert {"README.md", "test_conformance.py", "stages.py"} <= {path.name for path in files}
    for path in files:
        text = path.read_text()
        assert "my-plugin" not in text
        assert "my_plugin" not in text
        if path.suffix == ".py":
            ast.parse(text)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Bird", "is no name for a plugin"),
        ("bird--song", "is no name for a plugin"),
        ("../bird", "is no name for a plugin"),
        ("9lives", "is no name for a plugin"),
        ("b" * 65, "is no name for a plugin"),
        ("bird\n", "is no name for a plugin"),
        ("class", "is a word of Python's own"),
        ("json", "exists already in this Python"),
        ("numpy", "exists already in this Python"),
        ("toy-voice", "there is a recipe 'toy-voice' already"),
    ],
)
def test_name_is_refused(omni, tmp_path, name, message) -> None:
    ran = omni("new-plugin", name, "--dir", tmp_path)
    assert ran.code == 1
    assert message in ran.err
    assert not list(tmp_path.iterdir())


def test_never_overwrites(omni, tmp_path) -> None:
    (tmp_path / "bird").mkdir()
    ran = omni("new-plugin", "bird", "--dir", tmp_path)
    assert ran.code == 1
    assert "exists already; nothing was written" in ran.err
    assert not list((tmp_path / "bird").iterdir())
