"""The rules that hold the project together: imports point one way, core knows no model, listing is light."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CORE = ROOT / "core" / "omni"
PLUGINS = ROOT / "plugins"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())

NAMES = [
    "fish",
    "s2-?pro",
    "qwen",
    "hibari",
    "whisper",
    "kokoro",
    "higgs",
    "moss",
    "voxtral",
    "cosyvoice",
    "xtts",
    "orpheus",
]
"""Names of models and model families. A name inside a longer word (``rewhispered``) counts as well."""

MAY_NAME = {
    # OpenAI's own model names, which clients send whatever is served.
    CORE / "server" / "openai_names.py",
}


def sources() -> list[Path]:
    found = [
        path for path in CORE.rglob("*") if path.suffix in (".py", ".html", ".js", ".css", ".toml", ".md", ".yaml")
    ]
    assert len(found) > 50
    return found


def test_no_model_name_occurs_in_core() -> None:
    pattern = re.compile("|".join(NAMES), re.IGNORECASE)
    hits = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in sources()
        if path not in MAY_NAME
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if pattern.search(line)
    ]
    assert hits == []


def test_every_plugin_folder_is_registered_packaged_and_under_the_import_contracts() -> None:
    folders = {path.parent.name for path in PLUGINS.glob("*/__init__.py")}
    assert set(PROJECT["project"]["entry-points"]["omni"].values()) == folders
    packaged = set(PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"])
    assert {f"plugins/{folder}" for folder in folders} <= packaged
    linter = PROJECT["tool"]["importlinter"]
    assert folders | {"omni"} == set(linter["root_packages"])
    contracts = {contract["name"]: contract for contract in linter["contracts"]}
    assert folders == set(contracts["Core imports no plugin"]["forbidden_modules"])
    assert folders == set(contracts["Plugins stand on the public face of core"]["source_modules"])
    assert folders == set(contracts["Plugins know nothing of each other"]["modules"])


def test_the_import_contracts_hold() -> None:
    lint = shutil.which("lint-imports", path=str(Path(sys.executable).parent))
    if lint is None:
        pytest.skip("import-linter is not installed")
    ran = subprocess.run([lint, "--no-cache"], cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def python(code: str) -> str:
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


HEAVY = {
    "torch",
    "transformers",
    "onnxruntime",
    "tensorflow",
    "scipy",
    "av",
    "soxr",
    "fastapi",
    "uvicorn",
    "huggingface_hub",
    "ctranslate2",
    "faster_whisper",
    "hibari",
}


@pytest.mark.parametrize(
    "code",
    [
        "import omni",
        "from omni.plugins import Plugins; assert len(Plugins.load().recipes) >= 2",
        "from omni.cli.main import main; import contextlib, io\n"
        "with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit): main(['recipes'])",
        "from omni.cli.main import main; import contextlib, io\n"
        "with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit): main(['--help'])",
    ],
    ids=["import omni", "all recipes", "omni recipes", "omni --help"],
)
def test_importing_and_listing_is_light(code: str) -> None:
    loaded = json.loads(python(f"import sys, json\n{code}\nprint(json.dumps(sorted(sys.modules)))").splitlines()[-1])
    assert "omni" in loaded
    assert HEAVY & {name.partition(".")[0] for name in loaded} == set()


def test_all_that_an_author_needs_is_exported() -> None:
    import omni

    assert sorted(omni.__all__) == sorted(set(omni.__all__))
    for name in omni.__all__:
        assert getattr(omni, name) is not None
    kinds = {"Preprocess", "Encoder", "AR", "Decoder", "Aggregator"}
    assert kinds | {"Recipe", "StageSpec", "Weights", "Speech", "Transcription", "hookimpl"} <= set(omni.__all__)
