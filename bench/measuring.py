"""What the benchmarks of engines share: requests in step, clocks, floors, reports."""

from __future__ import annotations

import argparse
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from omni.engines.base import Prompt, SamplingParams, StepOutput
from omni.engines.torch import TorchEngine

Probe = Callable[[], object]
Figures = dict[str, float]
Line = tuple[str, str, bool]
"""``(what was measured, against what, whether the goal is reached)``"""


class Lockstep:
    """Requests that advance together, one step per :meth:`step`; between steps the engine sleeps."""

    def __init__(self, engine: TorchEngine, batch: int) -> None:
        self._engine = engine
        self._allowed = 0
        self._arrived = threading.Semaphore(0)
        self.sinks = [_Sink(self) for _ in range(batch)]
        self._handles = []

    def submit(self, prompts: list[Prompt], params: SamplingParams) -> None:
        for index, (sink, item) in enumerate(zip(self.sinks, prompts, strict=True)):
            self._handles.append(self._engine.submit(str(index), item, params, sink))

    def room(self, sink: _Sink) -> int:
        return self._allowed - sink.pushed

    def arrived(self) -> None:
        self._arrived.release()

    def step(self, count: int = 1) -> None:
        """Give the clients room for ``count`` steps and wait until all have their codes."""
        self._allowed += count
        self.sinks[0].wake()
        for _ in range(count * len(self.sinks)):
            self._arrived.acquire()
            for sink in self.sinks:
                if sink.error is not None:
                    raise sink.error

    def end(self) -> None:
        for handle in self._handles:
            self._engine.abort(handle)


class _Sink:
    def __init__(self, group: Lockstep) -> None:
        self._group = group
        self.pushed = 0
        self.cached = 0
        self.error: Exception | None = None
        self.wake: Callable[[], None] = lambda: None

    def room(self) -> int:
        return self._group.room(self)

    def push(self, output: Any) -> None:
        self.pushed += 1
        self.cached = output.cached_tokens
        self._group.arrived()

    def finish(self) -> None:
        pass

    def fail(self, error: Exception) -> None:
        self.error = error
        self._group.arrived()

    def on_room(self, wake: Callable[[], None]) -> None:
        self.wake = wake


class Timer:
    """Seconds of calls on the clock that the number of threads asks for; ``wall`` keeps the wall time beside it."""

    def __init__(self, threads: int) -> None:
        self._clock = time.process_time if threads == 1 else time.perf_counter
        self.wall: dict[str, float] = {}

    def __call__(self, name: str, call: Probe) -> float:
        start, begin = time.perf_counter(), self._clock()
        call()
        seconds = self._clock() - begin
        self.wall[name] = min(self.wall.get(name, 1e9), time.perf_counter() - start)
        return seconds

    def in_turns(self, probes: dict[str, Probe], times: int) -> dict[str, float]:
        """The best of each of ``probes``, which take turns ``times`` times."""
        found: dict[str, list[float]] = {name: [] for name in probes}
        for _ in range(times):
            for name, probe in probes.items():
                found[name].append(self(name, probe))
        return {name: min(values) for name, values in found.items()}


def memory(size: int) -> Probe:
    """Read ``size`` bytes, from a buffer far larger than the caches."""
    buffer = torch.zeros(min(size, 256 << 20) // 4)
    whole, rest = divmod(size // 4, buffer.numel())

    def read() -> None:
        for _ in range(whole):
            buffer.sum()
        buffer[:rest].sum()

    return read


class Stream:
    """Notes when each frame arrives; ``on_frame`` sees each, on the engine's thread."""

    def __init__(self, on_frame: Callable[[Any], None] = lambda codes: None) -> None:
        self._on_frame = on_frame
        self.times: list[float] = []
        self.error: Exception | None = None
        self.ended = threading.Event()

    def room(self) -> int:
        return 1

    def push(self, output: StepOutput) -> None:
        self._on_frame(output.codes)
        self.times.append(time.perf_counter())

    def finish(self) -> None:
        self.ended.set()

    def fail(self, error: Exception) -> None:
        self.error = error
        self.ended.set()

    def on_room(self, wake: Any) -> None:
        pass

    def wait(self) -> None:
        self.ended.wait()
        if self.error is not None:
            raise self.error


def read_rate(device: torch.device) -> float:
    """Bytes that the device reads per second now."""
    buffer = torch.zeros((1 << 30) // 4 if device.type == "cuda" else 1 << 24, device=device)
    found = []
    for _ in range(8):
        sync(device)
        start = time.perf_counter()
        buffer.sum()
        sync(device)
        found.append(buffer.numel() * 4 / (time.perf_counter() - start))
    return max(found)


def sync(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def run_parts(parts: list[tuple[str, Callable[[], None]]], begin: float, limit: float) -> list[str]:
    """Run what can begin within ``limit`` seconds after ``begin``; gives the names of the others."""
    missed = []
    for name, part in parts:
        if time.perf_counter() - begin > limit:
            missed.append(name)
        else:
            part()
    return missed


def write(figures: Figures, file: str | None) -> None:
    if file is not None:
        Path(file).write_text(json.dumps(figures, indent=1), encoding="utf-8")


def show_lines(lines: list[Line]) -> None:
    for what, against, reached in lines:
        print(f"{'ok  ' if reached else 'MISS'} {what}: {against}")


def show_figures(figures: Figures, goals: dict[str, float], missed: list[str]) -> None:
    """All figures, those with a goal (to stay below) beside it, and what was not measured."""
    for name, value in figures.items():
        print(f"{name:34} {value:12.3f}")
    for name, goal in goals.items():
        if name in figures:
            print(f"{'ok  ' if figures[name] < goal else 'MISS'} {name} {figures[name]:.3f}, goal {goal}")
    for name in missed:
        print(f"not measured: {name}")


def cuda_arguments(doc: str | None, sizes: tuple[str, ...] = (), limit: float = 330) -> argparse.ArgumentParser:
    """What every script for a GPU takes; the first of ``sizes`` is the default."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0] if doc else None)
    parser.add_argument("--device", default="cuda")
    if sizes:
        parser.add_argument("--size", choices=sizes, default=sizes[0])
    parser.add_argument("--tiny", action="store_true", help="small sizes: checks the script, measures nothing")
    parser.add_argument("--limit", type=float, default=limit, help="seconds after which no part is begun")
    parser.add_argument("--json", help="write the figures to this file")
    return parser
