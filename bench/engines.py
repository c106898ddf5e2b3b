"""Both AR engines on the same random Fish S2-Pro (about 230 M parameters) on this CPU, in one run.

    make bench-engines
    .venv-sglang/bin/python bench/engines.py [--size small] [--frames 24] [--rounds 3] [--json FILE]

Both are up at the same time and take turns, since other work may share the machine; each figure is the best of its
kind. A step is counted from the moment that every request has had its first frame until the first one has its last.
SGLang runs in processes of its own: its wall times hold the way there and back, its processor times are those of all of
them. On a machine that is busy with other things, processor time is the one to compare.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fish_s2pro.sizes import SIZES
from fish_s2pro.source import DualARSource
from omni.engines.base import Engine, Prompt, SamplingParams, StepOutput
from omni.engines.sglang import create_engine as sglang_engine
from omni.engines.torch import LayerStack
from omni.engines.torch import create_engine as torch_engine

STUBS = Path(__file__).parents[1] / "tests" / "sglang" / "stubs"
BATCHES = (1, 8, 16)
PROMPT = 100


class Sink:
    """Notes when each step arrives."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.error: Exception | None = None
        self.begun = threading.Event()
        self.ended = threading.Event()

    def room(self) -> int:
        return 1

    def push(self, output: StepOutput) -> None:
        self.times.append(time.perf_counter())
        self.begun.set()

    def finish(self) -> None:
        self.ended.set()

    def fail(self, error: Exception) -> None:
        self.error = error
        self.begun.set()
        self.ended.set()

    def on_room(self, wake: Any) -> None:
        pass


def processor_seconds() -> float:
    """Of this process and all below it."""
    import psutil

    me = psutil.Process()
    return sum(sum(process.cpu_times()[:2]) for process in (me, *me.children(recursive=True)))


def steady(engine: Engine, prompts: Sequence[Prompt], params: SamplingParams) -> tuple[float, float, float]:
    """Seconds until all requests have had their first frame; from there on seconds, and seconds of the processor, per
    step."""
    sinks = [Sink() for _ in prompts]
    begin = time.perf_counter()
    for index, (prompt, sink) in enumerate(zip(prompts, sinks, strict=True)):
        engine.submit(str(index), prompt, params, sink)
    for sink in sinks:
        sink.begun.wait()
    used = processor_seconds()
    for sink in sinks:
        sink.ended.wait()
        if sink.error is not None:
            raise sink.error
    used = processor_seconds() - used
    # One that has met its end token early says nothing about a full batch.
    whole = [sink.times for sink in sinks if len(sink.times) == params.max_new_tokens]
    if not whole:
        raise RuntimeError("every request ended early")
    first, last = max(times[0] for times in whole), min(times[-1] for times in whole)
    steps = sum(first < moment <= last for moment in whole[0])
    if not steps:
        raise RuntimeError("too few frames: the first request has ended before the last one has begun")
    return first - begin, (last - first) / steps, used / steps


def prompts_of(source: DualARSource, count: int, length: int, seed: int) -> list[Prompt]:
    """Text, a reference of frames, text: random, ``length`` positions."""
    config, _ = source.open()
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        codes = rng.integers(0, config.codebook_size, (config.codebooks, length))
        tokens = codes[0] + config.semantic_begin
        tokens[:20], tokens[-20:] = rng.integers(0, 256, (2, 20))
        made.append(Prompt(tokens=tokens, codes=codes))
    return made


def params_of(frames: int, seed: int) -> SamplingParams:
    return SamplingParams(max_new_tokens=frames, temperature=0.8, top_p=0.8, top_k=30, seed=seed)


def measure(arguments: argparse.Namespace) -> dict[str, dict[str, float]]:
    source = DualARSource(device="cpu", dtype="float32", random=arguments.size)
    begin = time.perf_counter()
    here = torch_engine(
        source.build(LayerStack, device=torch.device("cpu")), {"kv_tokens": 8192, "max_running": max(BATCHES)}
    )
    here.start()
    figures: dict[str, dict[str, float]] = {"torch": {"start_s": time.perf_counter() - begin}}
    begin = time.perf_counter()
    there = sglang_engine(source, {"max_total_tokens": 8192, "max_running_requests": max(BATCHES)})
    there.start()
    figures["sglang"] = {"start_s": time.perf_counter() - begin}
    engines: dict[str, Engine] = {"torch": here, "sglang": there}
    seed = 0
    for _ in range(arguments.rounds):
        for batch in BATCHES:
            for name, engine in engines.items():
                seed += 1
                found = steady(engine, prompts_of(source, batch, PROMPT, seed), params_of(arguments.frames, seed))
                for what, seconds in zip(("first_ms", "step_ms", "step_cpu_ms"), found, strict=True):
                    key = f"batch{batch}_{what}"
                    figures[name][key] = min(figures[name].get(key, 1e9), 1e3 * seconds)
    for engine in engines.values():
        engine.close()
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--frames", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", help="write the figures to this file")
    arguments = parser.parse_args()
    # For SGLang's processes: see the folder.
    sys.path.insert(0, str(STUBS))
    threads = int(os.environ.setdefault("OMP_NUM_THREADS", "1"))
    torch.set_num_threads(threads)
    figures = measure(arguments)
    print(f"random weights, size {arguments.size}, prompts of {PROMPT} positions, {threads} thread(s)")
    print(f"{'':16}{'torch':>10}{'sglang':>10}  sglang / torch")
    for key in figures["torch"]:
        one, other = figures["torch"][key], figures["sglang"][key]
        print(f"{key:20}{one:8.1f}  {other:8.1f}  {other / one:10.2f}")
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(figures, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
