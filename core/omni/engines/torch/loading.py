"""Read safetensors checkpoints, one file or sharded, straight into parameters."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from omni.errors import WeightsError

_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_MAX_HEADER = 100 << 20
_STEP = 16 << 20


class _Entry(NamedTuple):
    file: Path
    offset: int
    dtype: torch.dtype
    shape: tuple[int, ...]


class Checkpoint:
    """The tensors of a folder in the Hub's layout, by name. Nothing is read before :meth:`copy`.

    The safetensors library maps a whole file, and what has been read of it counts as the process's memory until it is
    closed. Here a tensor is mapped in pieces of 16 MiB and copied (and converted) to where it belongs, so loading
    takes little more than the weights themselves.

    Raises:
        WeightsError: no such file, a broken header or index.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._entries: dict[str, _Entry] = {}
        if (folder / _INDEX).is_file():
            for name in sorted(self._shards(folder / _INDEX)):
                self._add(folder / name)
        elif (folder / _SINGLE).is_file():
            self._add(folder / _SINGLE)
        else:
            raise WeightsError(f"{folder} has neither {_INDEX} nor {_SINGLE}")

    @staticmethod
    def _shards(index: Path) -> set[str]:
        try:
            names = set(json.loads(index.read_text())["weight_map"].values())
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise WeightsError(f"{index} is not an index of safetensors files") from error
        for name in names:
            if not isinstance(name, str) or Path(name).name != name:
                raise WeightsError(f"{index} names a file outside its folder: {name!r}")
        return names

    def _add(self, file: Path) -> None:
        try:
            with file.open("rb") as stream:
                size = stream.seek(0, 2)
                stream.seek(0)
                (length,) = struct.unpack("<Q", stream.read(8))
                if length > min(_MAX_HEADER, size - 8):
                    raise ValueError("header longer than the file")
                header: dict[str, Any] = json.loads(stream.read(length))
            header.pop("__metadata__", None)
            for name, entry in header.items():
                self._entries[name] = self._entry(file, 8 + length, size, entry)
        except OSError as error:
            raise WeightsError(f"cannot read {file}: {error}") from error
        except (ValueError, KeyError, TypeError, struct.error) as error:
            raise WeightsError(f"{file} is not a complete safetensors file: {error}") from error

    @staticmethod
    def _entry(file: Path, base: int, size: int, entry: Mapping[str, Any]) -> _Entry:
        dtype, shape = _DTYPES[entry["dtype"]], tuple(int(n) for n in entry["shape"])
        start, stop = (int(n) for n in entry["data_offsets"])
        if not (0 <= start <= stop and base + stop <= size and min(shape, default=1) >= 0):
            raise ValueError("data outside the file")
        if stop - start != math.prod(shape) * dtype.itemsize:
            raise ValueError("size and shape differ")
        return _Entry(file, base + start, dtype, shape)

    @property
    def names(self) -> Iterable[str]:
        return self._entries.keys()

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def shape(self, name: str) -> tuple[int, ...]:
        """Raises :class:`WeightsError` naming a tensor that is missing."""
        return self._find(name).shape

    def _find(self, name: str) -> _Entry:
        entry = self._entries.get(name)
        if entry is None:
            raise WeightsError(f"tensor {name} is missing in {self.folder}")
        return entry

    def copy(self, name: str, target: Tensor) -> None:
        """Fill ``target``, contiguous and of any device and floating dtype, with the tensor ``name``.

        Raises:
            WeightsError: the tensor is missing or has another shape; the message names it.
        """
        entry = self._find(name)
        if entry.shape != tuple(target.shape):
            raise WeightsError(f"tensor {name} has shape {list(entry.shape)}, expected {list(target.shape)}")
        flat = target.detach().view(-1)
        step = _STEP // entry.dtype.itemsize
        for start in range(0, flat.numel(), step):
            part = flat[start : start + step]
            raw = np.memmap(
                entry.file,
                np.uint8,
                "c",  # copy on write: torch warns about arrays that cannot be written
                entry.offset + start * entry.dtype.itemsize,
                part.numel() * entry.dtype.itemsize,
            )
            part.copy_(torch.from_numpy(raw).view(entry.dtype))

    def require(self, names: Iterable[str]) -> None:
        """Raises :class:`WeightsError` that names what is missing, all at once."""
        missing = [name for name in names if name not in self._entries]
        if missing:
            shown = ", ".join(missing[:8]) + (f" and {len(missing) - 8} more" if len(missing) > 8 else "")
            raise WeightsError(f"tensors are missing in {self.folder}: {shown}")

    def fill(self, targets: Mapping[str, Tensor]) -> None:
        """:meth:`copy` for every name, after :meth:`require`.

        Raises:
            WeightsError: see :meth:`copy`.
        """
        self.require(targets)
        for name, target in targets.items():
            self.copy(name, target)
