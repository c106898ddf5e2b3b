"""What ``omni new-plugin`` writes is a distribution of its own: built, installed beside omni, listed, served."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import httpx
import numpy as np
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]


def build(source: Path, wheels: Path) -> Path:
    before = set(wheels.iterdir())
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", wheels], cwd=source, check=True)
    (wheel,) = set(wheels.iterdir()) - before
    return wheel


class Machine:
    """A fresh environment that has omni's dependencies, and only what is installed into it besides."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.wheels = folder / "wheels"
        self.wheels.mkdir()
        venv.create(folder / "venv", with_pip=False, symlinks=True)
        self.python = str(folder / "venv" / "bin" / "python")
        # Dependencies come from here without the network. A path file inside of that folder is not followed, so what
        # is installed there for development (omni itself) stays invisible.
        site = next((folder / "venv").glob("lib/python*/site-packages"))
        (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
        self.site = site

    def install(self, source: Path) -> None:
        wheel = build(source, self.wheels)
        pip = [sys.executable, "-m", "pip", "--python", self.python, "install", "-q", "--no-deps", "--no-index"]
        subprocess.run([*pip, wheel], check=True)


@pytest.fixture(scope="module")
def machine(tmp_path_factory, omni) -> Machine:
    fresh = Machine(tmp_path_factory.mktemp("machine"))
    fresh.install(ROOT)
    for name, task in (("bird-song", "speech"), ("bird-ears", "transcription"), ("sick-bird", "speech")):
        written = omni("new-plugin", name, "--task", task, "--dir", fresh.folder, python=fresh.python)
        assert written.returncode == 0, written.stderr
    package = fresh.folder / "sick-bird" / "sick_bird" / "__init__.py"
    package.write_text("raise RuntimeError('this bird is sick')\n" + package.read_text())
    for name in ("bird-song", "bird-ears", "sick-bird"):
        fresh.install(fresh.folder / name)
    return fresh


def test_omni_is_the_wheel(machine) -> None:
    where = subprocess.run(
        [machine.python, "-c", "import omni, bird_song; print(omni.__file__, bird_song.__file__)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert all(Path(path).is_relative_to(machine.site) for path in where.stdout.split())


def test_listed_beside_a_plugin_that_fails(machine, omni) -> None:
    done = omni("plugins", python=machine.python)
    assert done.returncode == 1, "one of them failed"
    rows = [line.split() for line in done.stdout.splitlines()]
    assert ["bird-song", "bird-song", "0.1.0", "ok", "bird-song"] in rows
    assert ["bird-ears", "bird-ears", "0.1.0", "ok", "bird-ears"] in rows
    assert ["sick-bird", "sick-bird", "0.1.0", "FAILED", "-"] in rows
    assert "Traceback" in done.stdout
    assert "RuntimeError: this bird is sick" in done.stdout
    recipes = {recipe["name"] for recipe in json.loads(omni("recipes", "--json", python=machine.python).stdout)}
    assert {"bird-song", "bird-ears", "hibari-tts"} <= recipes
    assert "sick-bird" not in recipes


def test_served_together(machine, launch) -> None:
    with launch("--recipe", "bird-song", "--recipe", "bird-ears", python=machine.python) as server:
        body = {"model": "bird-song", "input": "do re mi", "response_format": "pcm", "pitch": 2.0}
        low = httpx.post(f"{server.url}/v1/audio/speech", json={**body, "pitch": 1.0})
        high = httpx.post(f"{server.url}/v1/audio/speech", json=body)
        assert low.status_code == high.status_code == 200
        assert len(low.content) == len(high.content) == 2 * 24_000 * 8 * 6 // 100
        assert low.content != high.content
        assert httpx.post(f"{server.url}/v1/audio/speech", json={**body, "pitch": 3.0}).status_code == 400
        sound = subprocess.run(
            [machine.python, "-c", MELODY], capture_output=True, check=True, cwd=machine.folder
        ).stdout
        heard = httpx.post(
            f"{server.url}/v1/audio/transcriptions", data={"model": "bird-ears"}, files={"file": ("m.wav", sound)}
        )
        assert heard.json()["text"] == "A4 Cs5 E5 A5"
        server.interrupt()
        assert server.exit_code() == 0


MELODY = """
import sys
from bird_ears.samples import samples
sys.stdout.buffer.write(bytes(samples().requests[0].audio))
"""


def test_says_without_a_server(machine, omni) -> None:
    out = machine.folder / "song.pcm"
    done = omni("say", "ab", "-o", out, "--recipe", "bird-song", "--voice", "square", python=machine.python)
    assert done.returncode == 0, done.stderr
    samples = np.frombuffer(out.read_bytes(), "<i2")
    assert len(samples) == 2 * 1440
    assert len(np.unique(np.abs(samples))) == 1


@pytest.mark.parametrize("name", ["bird-song", "bird-ears"])
def test_conformance_untouched(machine, name) -> None:
    """The test that the scaffold brings, run where a plugin author would."""
    folder = machine.folder / name
    done = subprocess.run(
        [machine.python, "-m", "pytest", "-q", "-p", "no:cacheprovider"], cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout


def test_conformance_from_the_command_line(machine) -> None:
    kit = [machine.python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--pyargs", "omni.testing"]
    done = subprocess.run(
        [*kit, "--recipe", "bird-song", "-k", "seed or valid"], cwd=machine.folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
