"""The kit as its users meet it: from the command line, and in the tests of their own plugin."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import toy_tts

from omni.errors import ConfigError
from omni.plugins import Plugins
from omni.testing import Samples
from omni.testing.checks import CHECKS
from omni.testing.checks.hygiene import listing_is_light
from omni.testing.kit import ConformanceFailure, Kit
from omni.testing.samples import samples_of

TOYS = Path(toy_tts.__file__).parent


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder like site-packages, in which the toys are an installed plugin."""
    info = tmp_path / "site" / "toys-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toys\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[omni]\ntoy_tts = toy_tts\ntoy_asr = toy_asr\n")
    return info.parent


def run(site: Path, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), str(TOYS)]), "PYTEST_ADDOPTS": ""}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment, timeout=100, check=False)


def test_the_command_line_checks_an_installed_recipe(site: Path, tmp_path: Path) -> None:
    done = run(
        site, "--pyargs", "omni.testing", "--recipe", "toy-asr", "-k", "listing or times or shortened", cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout
    assert "3 passed" in done.stdout
    assert "for speech recipes only" in done.stdout  # a skip is never silent


def test_a_setting_reaches_the_recipe_and_a_failure_says_what_was_to_be_proved(site: Path, tmp_path: Path) -> None:
    arguments = ("--pyargs", "omni.testing", "--recipe", "toy-tts", "--set", "limits.timeout_s=0.0001", "-k", "valid")
    done = run(site, *arguments, cwd=tmp_path)
    assert done.returncode == 1, done.stdout
    assert "toy-tts: a legal request failed: DeadlineExceeded" in done.stdout
    assert "the check outputs_are_valid proves that" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "name a recipe with --recipe; installed are: "),
        (("--recipe", "toy-nothing"), "there is no recipe 'toy-nothing'; there are: "),
    ],
)
def test_a_missing_recipe_is_a_usage_error(site: Path, tmp_path: Path, arguments: tuple[str, ...], says: str) -> None:
    done = run(site, "--pyargs", "omni.testing", *arguments, cwd=tmp_path)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert says in done.stderr
    assert "toy-tts" in done.stderr


def test_a_plugin_can_have_the_kit_in_its_own_tests(site: Path, tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text("from omni.testing import conformance\n\nTestToy = conformance('toy-tts')\n")
    done = run(site, "test_mine.py", "-k", "valid or listing or light or times", "-rs", cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    assert "2 passed, 1 skipped" in done.stdout
    assert "for transcription recipes only" in done.stdout


def test_other_test_runs_are_left_alone(site: Path, tmp_path: Path) -> None:
    (tmp_path / "test_other.py").write_text("import sys\n\ndef test_it():\n    assert 'omni' not in sys.modules\n")
    done = run(site, "test_other.py", cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    assert run(site, "test_other.py", "--recipe", "toy-tts", cwd=tmp_path).returncode == pytest.ExitCode.USAGE_ERROR


def test_importing_the_kit_imports_no_pytest() -> None:
    code = "import sys, omni.testing; sys.exit(any(m in sys.modules for m in ('pytest', 'torch', 'fastapi')))"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


@pytest.mark.parametrize(
    ("import_line", "says"),
    [("import jax", "imports jax"), ("import no_such_module_", "No module named 'no_such_module_'"), ("", None)],
)
def test_a_plugin_that_is_heavy_to_list_is_caught(
    module: Callable[[str, str], None], import_line: str, says: str | None
) -> None:
    module("jax", "")
    module("heavy_plugin", f"from toy_tts import recipe\n{import_line}\nomni_recipes = lambda: [recipe()]\n")
    plugins = Plugins()
    plugins.add("heavy_plugin", lambda: toy_tts)
    with Kit(plugins.recipe("toy-tts"), plugins) as kit:
        if says is None:
            listing_is_light(kit)
        else:
            with pytest.raises(ConformanceFailure, match=says):
                listing_is_light(kit)


@pytest.mark.parametrize(
    ("recipe", "says"),
    [
        (toy_tts.recipe(samples="toy_tts:recipe"), "must return omni.testing.Samples"),
        (toy_tts.recipe(task={"languages": ("de", "fr")}), "the built-in sentences are English"),
    ],
)
def test_wrong_samples_are_an_error_that_says_so(recipe: object, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        samples_of(recipe)  # type: ignore[arg-type]


def test_built_in_samples_clone_only_where_there_is_no_voice() -> None:
    assert not samples_of(toy_tts.recipe()).requests[0].references  # type: ignore[union-attr]
    cloned = samples_of(toy_tts.recipe(task={"voices": ()}))
    assert isinstance(cloned, Samples)
    assert cloned.requests[0].references  # type: ignore[union-attr]


def test_the_documentation_lists_every_check() -> None:
    page = (Path(__file__).parents[3] / "docs" / "conformance.md").read_text()
    table = page.partition("## What each check proves")[2].partition("## Samples")[0]
    listed = [line.split("`")[1] for line in table.splitlines() if line.startswith("| `")]
    assert listed == [check.name for check in CHECKS]
