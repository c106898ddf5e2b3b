"""What tests of every part use."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], None]]:
    """Writes a module ``(name, source)``, importable until the test ends: the next test may use the name anew."""
    folder = tmp_path / "modules"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))

    def write(name: str, source: str) -> None:
        (folder / f"{name}.py").write_text(source)
        importlib.invalidate_caches()

    yield write
    for name, loaded in list(sys.modules.items()):
        if (getattr(loaded, "__file__", None) or "").startswith(str(folder)):
            del sys.modules[name]
