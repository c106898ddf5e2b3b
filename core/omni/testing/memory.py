"""How much memory a process holds, and where Python took it."""

from __future__ import annotations

import gc
import sys
import tracemalloc
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Memory:
    """A reading. ``python``: bytes that tracemalloc sees (numpy's arrays are among them); ``resident`` and ``device``:
    bytes of the process and on CUDA devices, 0 where they cannot be read."""

    python: int
    resident: int
    device: int
    snapshot: tracemalloc.Snapshot


def read() -> Memory:
    """Collect garbage and take a reading; tracemalloc must run."""
    gc.collect()
    ours = (tracemalloc.Filter(False, tracemalloc.__file__), tracemalloc.Filter(False, __file__))
    snapshot = tracemalloc.take_snapshot().filter_traces(ours)
    return Memory(sum(trace.size for trace in snapshot.traces), _resident(), _device(), snapshot)


def growth(before: Memory, after: Memory, lines: int = 3) -> str:
    """The lines of code that hold most of what has come, in words."""
    found = [s for s in after.snapshot.compare_to(before.snapshot, "lineno")[:lines] if s.size_diff > 0]
    return "; ".join(f"{s.size_diff} bytes from {s.traceback[0].filename}:{s.traceback[0].lineno}" for s in found)


def _resident() -> int:
    statm = Path("/proc/self/statm")
    if not statm.exists():
        return 0
    import resource

    return int(statm.read_text().split()[1]) * resource.getpagesize()


def _device() -> int:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return 0
    return sum(torch.cuda.memory_allocated(i) for i in range(torch.cuda.device_count()))
