"""The memory of this machine, as far as its container lets one have it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple


class Memory(NamedTuple):
    """Bytes. ``limit`` is the container's, None without one; ``available`` is what is left, also of the limit."""

    total: int
    available: int
    limit: int | None


def memory(root: Path = Path("/")) -> Memory:
    """Source: Linux ``/proc/meminfo`` and the files of cgroup v2; elsewhere all of the memory counts as available."""
    lines = (line.split(":", 1) for line in _read(root / "proc/meminfo").splitlines() if ":" in line)
    info = {name: int(value.split()[0]) * 1024 for name, value in lines}
    total = info.get("MemTotal") or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    available = info.get("MemAvailable", total)
    group = root / "sys/fs/cgroup"
    given, used = _read(group / "memory.max").strip(), _read(group / "memory.current").strip()
    if not given.isdigit() or int(given) >= total:
        return Memory(total, available, None)
    left = int(given) - int(used) if used.isdigit() else int(given)
    return Memory(total, max(0, min(available, left)), int(given))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
