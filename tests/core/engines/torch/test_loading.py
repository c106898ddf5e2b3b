"""Checkpoints: layouts, conversion, errors that name the tensor, memory."""

from __future__ import annotations

import json
import struct
import subprocess
import sys

import pytest
import torch
from safetensors.torch import save_file

from omni.engines.torch import Checkpoint
from omni.errors import WeightsError

TENSORS = {
    "a": torch.arange(12.0).view(3, 4),
    "b": torch.arange(6).view(2, 3).bfloat16() / 7,
    "empty": torch.empty(0, 3),
    "scalar": torch.tensor(3.0),
}


def targets(dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    return {name: torch.full(value.shape, -1.0, dtype=dtype) for name, value in TENSORS.items()}


def sharded(folder) -> None:
    save_file({"a": TENSORS["a"]}, folder / "one.safetensors")
    save_file({k: v for k, v in TENSORS.items() if k != "a"}, folder / "two.safetensors")
    weight_map = {name: "one.safetensors" if name == "a" else "two.safetensors" for name in TENSORS}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


@pytest.mark.parametrize("layout", ["single", "sharded"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fill(tmp_path, layout, dtype) -> None:
    if layout == "single":
        save_file(TENSORS, tmp_path / "model.safetensors", metadata={"format": "pt"})
    else:
        sharded(tmp_path)
    checkpoint, found = Checkpoint(tmp_path), targets(dtype)
    checkpoint.fill(found)
    assert set(checkpoint.names) == set(TENSORS)
    assert checkpoint.shape("a") == (3, 4)
    for name, value in TENSORS.items():
        assert torch.equal(found[name], value.to(dtype))


def test_fill_takes_views_and_pieces(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("omni.engines.torch.loading._STEP", 8)
    save_file(TENSORS, tmp_path / "model.safetensors")
    joined = torch.zeros(6, 4)
    Checkpoint(tmp_path).fill({"a": joined[3:]})
    assert torch.equal(joined, torch.cat((torch.zeros(3, 4), TENSORS["a"])))


def test_missing_and_misshapen_tensors_are_named(tmp_path) -> None:
    save_file(TENSORS, tmp_path / "model.safetensors")
    checkpoint = Checkpoint(tmp_path)
    with pytest.raises(WeightsError, match=r"layers\.3\.wo"):
        checkpoint.fill({"a": torch.empty(3, 4), "layers.3.wo": torch.empty(1)})
    with pytest.raises(WeightsError, match=r"tensor a has shape \[3, 4\], expected \[4, 3\]"):
        checkpoint.fill({"a": torch.empty(4, 3)})
    with pytest.raises(WeightsError, match="nothing"):
        checkpoint.shape("nothing")


def _bytes(header: bytes, data: bytes = b"", length: int | None = None) -> bytes:
    return struct.pack("<Q", len(header) if length is None else length) + header + data


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"1234",
        _bytes(b"{}", length=1 << 40),
        _bytes(b"not json"),
        _bytes(b"[]"),
        _bytes(b'{"a": 3}'),
        _bytes(b'{"a": {"dtype": "F99", "shape": [1], "data_offsets": [0, 4]}}', b"1234"),
        _bytes(b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}', b"1234"),
        _bytes(b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}', b"123"),
        _bytes(b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [-4, 0]}}', b"1234"),
        _bytes(b'{"a": {"dtype": "F32", "shape": [-1, -1], "data_offsets": [0, 4]}}', b"1234"),
    ],
)
def test_broken_files_are_named(tmp_path, content) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(WeightsError, match=r"model\.safetensors"):
        Checkpoint(tmp_path)


@pytest.mark.parametrize(
    "index", ["x", "[]", '{"weight_map": {"a": "../model.safetensors"}}', '{"weight_map": {"a": 1}}']
)
def test_broken_or_escaping_index(tmp_path, index) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(index)
    with pytest.raises(WeightsError, match="index"):
        Checkpoint(tmp_path)


def test_absent_files(tmp_path) -> None:
    with pytest.raises(WeightsError, match="neither"):
        Checkpoint(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "gone.safetensors"}}')
    with pytest.raises(WeightsError, match="gone"):
        Checkpoint(tmp_path)


_MEASURE = """
import resource, sys, torch
from pathlib import Path
from omni.engines.torch import Checkpoint
def peak():
    return int(next(l for l in open("/proc/self/status") if l.startswith("VmHWM")).split()[1]) * 1024
checkpoint = Checkpoint(Path(sys.argv[1]))
targets = {name: torch.empty(checkpoint.shape(name), dtype=torch.bfloat16) for name in checkpoint.names}
before = peak()
checkpoint.fill(targets)
print(peak() - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_loading_takes_little_more_memory_than_the_weights(tmp_path) -> None:
    weights = {f"w{i}": torch.ones(10 << 20, dtype=torch.bfloat16) for i in range(12)}
    save_file(weights, tmp_path / "model.safetensors")
    size = 12 * (20 << 20)
    found = subprocess.run([sys.executable, "-c", _MEASURE, str(tmp_path)], capture_output=True, text=True, check=True)
    assert int(found.stdout) < 1.2 * size
