"""The real SGLang on a CPU. Runs where SGLang is installed (``make test-sglang``); elsewhere nothing is collected.

An engine takes seconds to start, so the tests of a file share one.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

HERE = Path(__file__).parent
DATA = HERE.parent / "data" / "fish_s2pro"
PATIENCE = 60.0

if find_spec("sglang") is None:
    collect_ignore_glob = ["test_*.py"]
else:
    # What SGLang imports and this CPU has no use for; its processes see the paths of this one.
    sys.path[:0] = [str(HERE / "stubs"), str(HERE / "toys"), str(HERE.parent / "plugins" / "qwen3_tts")]
    os.environ.setdefault("OMP_NUM_THREADS", "1")


class Sink:
    """Keeps what it gets. ``credit`` steps are taken before it is full; None: never full."""

    def __init__(self, credit: int | None = None) -> None:
        self._credit = credit
        self._wake: Callable[[], None] = lambda: None
        self.outputs: list[Any] = []
        self.error: Exception | None = None
        self.begun = threading.Event()
        self.ended = threading.Event()

    def room(self) -> int:
        return 1 if self._credit is None else self._credit - len(self.outputs)

    def push(self, output: Any) -> None:
        assert not self.ended.is_set()
        self.outputs.append(output)
        self.begun.set()

    def finish(self) -> None:
        self.ended.set()

    def fail(self, error: Exception) -> None:
        assert not self.ended.is_set()
        self.error = error
        self.ended.set()

    def on_room(self, wake: Callable[[], None]) -> None:
        self._wake = wake

    def open(self) -> None:
        """No longer full, whatever comes."""
        self._credit = None
        self._wake()

    @property
    def cached(self) -> int:
        return self.outputs[0].cached_tokens

    def result(self) -> tuple[list[list[int]], str]:
        """Codes of every step, and why it ended."""
        assert self.ended.wait(PATIENCE), "the request did not end"
        if self.error is not None:
            raise self.error
        assert [o.step for o in self.outputs] == list(range(len(self.outputs)))
        assert all(o.finish_reason is None for o in self.outputs[:-1])
        return [o.codes.tolist() for o in self.outputs if o.codes is not None], self.outputs[-1].finish_reason


def submit(engine: Any, prompt: Any, params: Any, credit: int | None = None) -> Sink:
    sink = Sink(credit)
    sink.handle = engine.submit("request", prompt, params, sink)
    return sink


def run(engine: Any, prompt: Any, params: Any) -> tuple[list[list[int]], str]:
    return submit(engine, prompt, params).result()


def prompt_of(values: Any) -> Any:
    """A golden matrix ``(1 + codebooks, T)`` as a prompt."""
    from omni.engines.base import Prompt

    array = np.asarray(values).astype(np.int64)
    return Prompt(tokens=array[0], codes=array[1:])


@pytest.fixture(scope="session")
def tools() -> SimpleNamespace:
    return SimpleNamespace(Sink=Sink, submit=submit, run=run, prompt=prompt_of, patience=PATIENCE)


@pytest.fixture(scope="session")
def ckpt() -> Path:
    return DATA / "ckpt"


@pytest.fixture(scope="session")
def golden() -> dict[str, Any]:
    from safetensors.numpy import load_file

    return load_file(DATA / "golden.safetensors")


@pytest.fixture(scope="session")
def source(ckpt: Path) -> Any:
    from fish_s2pro.source import DualARSource

    return DualARSource(device="cpu", dtype="float32", folder=str(ckpt))


@pytest.fixture(scope="session")
def torch_engine(source: Any) -> Iterator[Any]:
    """The embedded engine on the same weights: what SGLang must agree with."""
    import torch

    from omni.engines.torch import LayerStack, TorchEngine, parse_options

    engine = TorchEngine(source.build(LayerStack, device=torch.device("cpu")), parse_options({"kv_tokens": 8192}))
    engine.start()
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def start() -> Iterator[Callable[..., Any]]:
    """``start(source, **options)``: an engine that is closed when the file is done."""
    from omni.engines.sglang import create_engine

    engines = []

    def make(source: Any, **options: Any) -> Any:
        engine = create_engine(source, options)
        engines.append(engine)
        engine.start()
        return engine

    yield make
    for engine in engines:
        engine.close()


@pytest.fixture(scope="module", autouse=True)
def closing() -> Iterator[None]:
    """Close the engines that the conformance kit was given of a file, see :mod:`kept`."""
    import kept

    yield
    while kept.running:
        kept.running.popitem()[1].close()


@pytest.fixture(scope="session")
def work(golden: dict[str, Any]) -> list[tuple[Any, Any]]:
    """16 requests: all kinds of prompts, greedy and sampled in many ways."""
    from omni.engines.base import SamplingParams

    names = sorted(name for name in golden if name.startswith("prompt.") and name.endswith(".values"))
    made = []
    for i in range(16):
        params = SamplingParams(
            max_new_tokens=20 + 3 * i,
            temperature=(0.0, 0.7, 1.0, 1.5)[i % 4],
            top_p=(1.0, 0.8, 0.95)[i % 3],
            top_k=(30, 0, 50, 5, 1)[i % 5],
            seed=i,
        )
        made.append((prompt_of(golden[names[i % len(names)]]), params))
    return made


@pytest.fixture(scope="session")
def expected(work: list[tuple[Any, Any]], torch_engine: Any) -> list[tuple[list[list[int]], str]]:
    """What the embedded engine gives for each of them, alone."""
    return [run(torch_engine, *job) for job in work]
