"""``omni`` with two plugins made by ``omni new-plugin``, and none that happens to be installed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import NamedTuple

import pytest

from omni.cli.main import main
from omni.cli.new_plugin import create
from omni.plugins import Plugins


class Ran(NamedTuple):
    code: int
    out: str
    err: str


Omni = Callable[..., Ran]


@pytest.fixture(scope="session")
def scaffolds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder on ``sys.path`` with the packages ``toy_voice`` and ``toy_ears``."""
    folder = tmp_path_factory.mktemp("scaffolds")
    for name, task in (("toy-voice", "speech"), ("toy-ears", "transcription")):
        sys.path.append(str(create(name, task, folder)))
    return folder


class Installed(list[EntryPoint]):
    """The entry points that ``omni`` finds; tests add to it."""

    def add(self, name: str, module: str) -> None:
        self.append(EntryPoint(name, module, "omni"))


@pytest.fixture
def installed(scaffolds: Path, monkeypatch: pytest.MonkeyPatch) -> Installed:
    points = Installed()
    points.add("toy-voice", "toy_voice")
    points.add("toy-ears", "toy_ears")
    load = Plugins.load
    monkeypatch.setattr(Plugins, "load", lambda: load(points))
    return points


@pytest.fixture
def omni(installed: Installed, capfd: pytest.CaptureFixture[str]) -> Omni:
    """Runs ``omni`` with arguments in this process."""

    def run(*args: object) -> Ran:
        capfd.readouterr()
        code = main([str(arg) for arg in args])
        return Ran(code, *capfd.readouterr())

    return run
