"""The README is true: its commands and snippets run as they are printed, only the address is another."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
ADDRESS = "http://127.0.0.1:8000"
FOX = "the quick brown fox jumps over the lazy dog"


def block(language: str, holding: str) -> str:
    (found,) = (text for text in re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL) if holding in text)
    return found


def words(text: str) -> str:
    return " ".join(re.findall(r"[a-z]+", text.lower()))


def shell(command: str, cwd: Path) -> str:
    """Run with this Python's scripts first on the path; an error is a failure."""
    env = os.environ | {"PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])}
    return subprocess.run(
        ["sh", "-ec", command], cwd=cwd, env=env, capture_output=True, text=True, timeout=60, check=True
    ).stdout


@pytest.fixture(scope="module")
def server(launch):
    with launch() as running:
        yield running


@pytest.mark.skipif(shutil.which("curl") is None, reason="the printed lines need curl")
def test_curl(server, tmp_path) -> None:
    said = shell(block("sh", "audio/speech").replace(ADDRESS, server.url), tmp_path)
    assert words(said).startswith(f"text {FOX}")


def test_openai_client(server, tmp_path) -> None:
    (tmp_path / "client.py").write_text(block("python", "OpenAI(").replace(ADDRESS, server.url))
    assert words(shell("python client.py", tmp_path)) == "audio leaves the server as it is made"


def test_without_a_server(tmp_path) -> None:
    assert words(shell(block("sh", "omni say"), tmp_path)) == "good morning"


@pytest.fixture(scope="module")
def plugin(tmp_path_factory) -> Path:
    """A folder like site-packages that has the README's plugin installed."""
    text = block("python", "tone_tts/__init__.py")
    first, _, stages = text.partition("# tone_tts/stages.py\n")
    site = tmp_path_factory.mktemp("site")
    (site / "tone_tts").mkdir()
    (site / "tone_tts" / "__init__.py").write_text(first)
    (site / "tone_tts" / "stages.py").write_text(stages)
    info = site / "tone_tts-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tone-tts\nVersion: 1.0\n")
    registered = re.search(r"(\[project\.entry-points\.omni\])\s+(tone_tts = \S+)", first)
    assert registered is not None
    (info / "entry_points.txt").write_text(f"[omni]\n{registered[2].replace(chr(34), '')}\n")
    return site


def test_plugin_is_twenty_lines(plugin: Path) -> None:
    lines = [line for path in plugin.glob("tone_tts/*.py") for line in path.read_text().splitlines()]
    assert len([line for line in lines if line.strip() and not line.startswith("#")]) <= 20


@pytest.mark.timeout(240)
def test_plugin_passes_the_conformance_kit(plugin: Path, tmp_path) -> None:
    kit = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--pyargs", "omni.testing"]
    env = os.environ | {"PYTHONPATH": str(plugin), "PYTEST_ADDOPTS": ""}
    done = subprocess.run(
        [*kit, "--recipe", "tone-tts"], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
