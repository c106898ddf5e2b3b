"""``codec.pth``: opening it safely, checking it against the configuration, building the two halves of the codec."""

from __future__ import annotations

import ctypes
import mmap
import pickle
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fish_s2pro.codec.config import CodecConfig, read_config
from fish_s2pro.codec.decoder import CodecDecoder
from fish_s2pro.codec.encoder import CodecEncoder
from fish_s2pro.codec.weights import drawn
from omni import StageContext, WeightsError
from omni.codecs import RandomWeights, ShapeRecorder, compute_in_full

FILE = "codec.pth"
_STALE = (".freqs_cis", ".causal_mask")
"""Buffers of the reference's implementation that its file still holds; they are computed here."""


def weights_folder(context: StageContext) -> Path:
    """The folder that a stage loads from.

    Raises:
        WeightsError: the recipe has none.
    """
    if context.weights is None:
        raise WeightsError(f"stage {context.stage!r} needs weights: name a folder with --weights")
    return context.weights


def load_encoder(folder: Path, device: torch.device | str = "cpu") -> CodecEncoder:
    """The waveform-to-codes half, float32.

    Raises:
        WeightsError: ``codec.pth`` or ``codec_config.json`` is missing, unreadable or does not fit; names the tensor.
    """
    compute_in_full(torch.device(device), torch.float32)
    config = read_config(folder)
    checkpoint = Checkpoint(folder / FILE, config, torch.device(device), torch.float32)
    return CodecEncoder(checkpoint, config, torch.device(device))


def load_decoder(folder: Path, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32) -> CodecDecoder:
    """The codes-to-waveform half.

    Raises:
        WeightsError: as :func:`load_encoder`.
    """
    compute_in_full(torch.device(device), dtype)
    config = read_config(folder)
    checkpoint = Checkpoint(folder / FILE, config, torch.device(device), dtype)
    return CodecDecoder(checkpoint, config, torch.device(device), dtype)


def random_encoder(config: CodecConfig, seed: int = 0, device: torch.device | str = "cpu") -> CodecEncoder:
    """The waveform-to-codes half with random weights."""
    device = torch.device(device)
    compute_in_full(device, torch.float32)
    return CodecEncoder(RandomWeights(seed, device, torch.float32, drawn), config, device)


def random_decoder(
    config: CodecConfig, seed: int = 0, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
) -> CodecDecoder:
    """The codes-to-waveform half with random weights."""
    device = torch.device(device)
    compute_in_full(device, dtype)
    return CodecDecoder(RandomWeights(seed, device, dtype, drawn), config, device, dtype)


def tensor_shapes(config: CodecConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor of a checkpoint."""
    recorder = ShapeRecorder()
    meta = torch.device("meta")
    CodecEncoder(recorder, config, meta)
    CodecDecoder(recorder, config, meta)
    return recorder.shapes


class Checkpoint:
    """The tensors of ``codec.pth``, read from the mapped file one by one. A flat dictionary, one nested under
    ``state_dict`` and one whose names start with ``generator.`` are all in use."""

    def __init__(self, path: Path, config: CodecConfig, device: torch.device, dtype: torch.dtype) -> None:
        self._path = path
        self._device = device
        self.dtype = dtype
        self._tensors = _open(path)
        self._check(tensor_shapes(config))

    def raw(self, name: str, *shape: int) -> Tensor:
        found = self._tensors[name]
        copy = found.to(self._device, torch.float32, copy=True)
        _drop_pages(found)
        return copy

    def take(self, name: str, *shape: int) -> Tensor:
        return self.raw(name, *shape).to(self.dtype)

    def _check(self, expected: dict[str, tuple[int, ...]]) -> None:
        for name, shape in expected.items():
            found = self._tensors.get(name)
            if found is None:
                raise WeightsError(f"{self._path.name} lacks the tensor {name!r} of shape {list(shape)}")
            if tuple(found.shape) != shape:
                raise WeightsError(
                    f"{self._path.name}: {name!r} has shape {list(found.shape)}, the model needs {list(shape)}"
                )
            if not found.is_floating_point():
                raise WeightsError(f"{self._path.name}: {name!r} has type {found.dtype}, not a floating-point one")
        for name in self._tensors:
            if name not in expected and not name.endswith(_STALE):
                raise WeightsError(f"{self._path.name} holds {name!r}, which the model has no place for")


def _open(path: Path) -> dict[str, Tensor]:
    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except FileNotFoundError as error:
        raise WeightsError(f"{path.name} is missing in {path.parent}") from error
    except (pickle.UnpicklingError, RuntimeError, OSError, EOFError, ValueError) as error:
        raise WeightsError(f"{path} is not a PyTorch checkpoint of plain tensors: {error}") from error
    if isinstance(content, dict) and isinstance(content.get("state_dict"), dict):
        content = content["state_dict"]
    if not isinstance(content, dict):
        raise WeightsError(f"{path} holds a {type(content).__name__}, not a dictionary of tensors")
    return _generator_part({name: value for name, value in content.items() if isinstance(value, Tensor)})


def _generator_part(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """A training checkpoint keeps the codec beside its discriminators, under ``generator.``."""
    prefix = "generator."
    part = {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
    return part or tensors


def _drop_pages(tensor: Tensor) -> None:
    """Give back the resident pages of a mapped tensor that has been copied: otherwise the file and the weights made
    from it would both stay in memory while loading. The pages hold nothing but the file's content, and a later read
    fetches them again."""
    if sys.platform != "linux":
        return
    storage = tensor.untyped_storage()
    first = -(-storage.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
    length = (storage.data_ptr() + storage.nbytes() - first) // mmap.PAGESIZE * mmap.PAGESIZE
    if length > 0:
        _libc().madvise(ctypes.c_void_p(first), ctypes.c_size_t(length), mmap.MADV_DONTNEED)


def _libc() -> Any:
    return ctypes.CDLL(None)
