"""Which engine is chosen, which options pass, and what SGLang is told. Needs no SGLang."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import pytest
import torch

from omni.engines.base import ModelShape, ModelSource
from omni.engines.sglang import SUPPORTED, create_engine
from omni.engines.sglang import settings as s
from omni.engines.torch import BlockDims, StackDims
from omni.errors import ConfigError

SHAPE = ModelShape(4, 512, StackDims(BlockDims(64, 4, 2, 32, 160, 1e-6), 3, 512, 1e6))


class Source(ModelSource, kw_only=True, frozen=True):
    path: str = "somewhere"


CPU, GPU = Source(device="cpu", dtype="float32"), Source(device="cuda:1", dtype="bfloat16")


def installed(monkeypatch, version: str | None) -> None:
    from importlib.metadata import PackageNotFoundError

    def found(name: str) -> str:
        if version is None:
            raise PackageNotFoundError(name)
        return version

    monkeypatch.setattr("omni.engines.sglang.version", found)


@pytest.mark.parametrize(
    ("version", "why"),
    [
        (None, r"not installed \(pip install 'omni-recipes\[sglang\]'\)"),
        ("0.5.99", r"SGLang 0.5.99 is installed, omni supports 0.5.23 \(pip install"),
    ],
)
def test_why_it_cannot_run(monkeypatch, version, why) -> None:
    installed(monkeypatch, version)
    assert re.search(why, create_engine.probe())


def test_it_runs_with_the_release_that_the_extra_pins(monkeypatch) -> None:
    import tomllib

    installed(monkeypatch, SUPPORTED)
    assert create_engine.probe() is None
    project = tomllib.loads((Path(__file__).parents[4] / "pyproject.toml").read_text())
    assert f"sglang=={SUPPORTED}" in project["project"]["optional-dependencies"]["sglang"]
    bare = (Path(__file__).parents[3] / "sglang" / "requirements-bare.txt").read_text()
    assert f"sglang=={SUPPORTED}\n" in bare


@pytest.mark.parametrize("cuda", [True, False])
def test_it_is_preferred_for_stages_on_a_gpu(monkeypatch, cuda) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)

    def preferred(**options: str) -> bool:
        return create_engine.preference(SimpleNamespace(**options)) > 0

    assert preferred() is cuda
    assert preferred(device="auto") is cuda
    assert preferred(device="cuda:1")
    assert not preferred(device="cpu")


def test_asking_about_it_imports_neither_sglang_nor_torch() -> None:
    code = "import sys; from omni.engines.sglang import create_engine as c; c.probe(); print(sorted(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert "'torch'" not in ran.stdout
    assert "'sglang'" not in ran.stdout


@pytest.mark.parametrize("name", s.OURS)
def test_what_omni_decides_cannot_be_set(name) -> None:
    with pytest.raises(ConfigError, match=f"{name} cannot be set: {s.OURS[name]}"):
        s.parse_options({name: 1})


@pytest.mark.parametrize("options", [{"max_running_requests": 0}, {"max_waiting": -1}, {"max_candidates": "many"}])
def test_options_out_of_range_are_named(options) -> None:
    with pytest.raises(ConfigError, match=f"engine sglang: {next(iter(options))}"):
        s.parse_options(options)


def test_options_that_sglang_does_not_have_are_named() -> None:
    known: dict[str, Any] = {"mem_fraction_static": float, "page_size": int | None}
    s.refuse_wrong({"page_size": 4}, known)
    with pytest.raises(ConfigError, match=r"no option 'mem_fraction'; did you mean mem_fraction_static\?"):
        s.refuse_wrong({"page_size": 4, "mem_fraction": 0.5}, known)
    with pytest.raises(ConfigError, match=r"no option 'speed'$"):
        s.refuse_wrong({"speed": 1}, known)


def test_values_of_another_type_are_named() -> None:
    known: dict[str, Any] = {
        "mem_fraction_static": Annotated[float | None, "help"],
        "backend": Annotated[str | None, SimpleNamespace(choices=["one", "two"])],
        "odd": list[int] | set[int],
    }
    s.refuse_wrong({"mem_fraction_static": 1, "backend": "two", "odd": "?"}, known)
    s.refuse_wrong({"mem_fraction_static": None, "backend": None}, known)
    with pytest.raises(
        ConfigError, match=r"engine sglang: mem_fraction_static: Expected `float \| null`, got `str`; SGLang has"
    ):
        s.refuse_wrong({"mem_fraction_static": "most", "speed": 1}, known)
    with pytest.raises(ConfigError, match="engine sglang: backend must be one of one, two, not 'three'"):
        s.refuse_wrong({"backend": "three"}, known)


def test_one_module_imports_sglang() -> None:
    """What another release may rename is in one place."""
    root = Path(__file__).parents[4]
    pattern = re.compile(r"^\s*(from|import)\s+sglang\b", re.MULTILINE)
    files = [file for part in ("core", "plugins") for file in (root / part).rglob("*.py")]
    assert len(files) > 100
    assert [file.name for file in files if pattern.search(file.read_text("utf-8"))] == ["adapter.py"]


def test_what_is_set_passes_through_and_ours_stays(tmp_path) -> None:
    options = s.parse_options({"mem_fraction_static": 0.6, "max_running_requests": 9, "sleep_on_idle": False})
    found = s.arguments(GPU, SHAPE, options, tmp_path)
    assert found["mem_fraction_static"] == 0.6
    assert found["max_running_requests"] == 9
    assert found["sleep_on_idle"] is False
    assert (found["device"], found["base_gpu_id"], found["dtype"]) == ("cuda", 1, "bfloat16")
    assert found["model_path"] == str(tmp_path)
    assert found["context_length"] == 512 + s.SLACK
    assert "max_total_tokens" not in found
    assert "max_waiting" not in found
    small = s.arguments(CPU, SHAPE, s.parse_options({}), tmp_path)
    assert small["max_total_tokens"] == 32 * 512
    assert small["attention_backend"] == "torch_native"
    set_by_user = s.arguments(CPU, SHAPE, s.parse_options({"max_total_tokens": 99}), tmp_path)
    assert set_by_user["max_total_tokens"] == 99


def test_graphs_fix_how_many_candidates_a_draw_looks_at() -> None:
    def candidates(source: Source, **options) -> int | None:
        return s.model_settings(source, s.parse_options(options)).candidates

    assert candidates(CPU) is None
    assert candidates(CPU, max_candidates=64) is None
    assert candidates(GPU) == 0
    assert candidates(GPU, max_candidates=64) == 64
    assert candidates(GPU, disable_cuda_graph=True) is None


def test_the_folder_of_the_model(tmp_path) -> None:
    import msgspec
    from safetensors import safe_open

    made = s.model_settings(CPU, s.parse_options({"max_running_requests": 5}))
    s.write_folder(tmp_path, SHAPE, made)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["architectures"] == ["OmniARModel"]
    sizes = {k: config[k] for k in ("num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim")}
    assert sizes == dict(zip(sizes, (3, 4, 2, 32), strict=True))
    assert config["vocab_size"] == 2
    back = msgspec.convert(config["omni"], s.ModelSettings)
    assert back == made
    assert back.rows == 5
    assert msgspec.json.decode(back.fields, type=Source) == CPU
    assert back.source == f"{__name__}:Source"
    with safe_open(tmp_path / "model.safetensors", "np") as file:
        assert list(file.keys()) == ["none"]
