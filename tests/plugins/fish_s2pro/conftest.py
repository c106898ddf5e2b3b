"""The tiny random checkpoint and the arrays of the reference that belong to it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sinks import Sink

from fish_s2pro.loader import load_ar
from fish_s2pro.model import DualAR
from fish_s2pro.tokenizer import FishTokenizer
from omni.engines.base import Prompt, SamplingParams
from omni.engines.torch import TorchEngine, parse_options

HERE = str(Path(__file__).parent)
if HERE not in sys.path:
    sys.path.insert(0, HERE)

import fish_serving  # noqa: E402

DATA = Path(__file__).parents[2] / "data" / "fish_s2pro"


@pytest.fixture(scope="session")
def ckpt() -> Path:
    return DATA / "ckpt"


@pytest.fixture(scope="session")
def golden() -> dict[str, torch.Tensor]:
    return load_file(DATA / "golden.safetensors")


@pytest.fixture(scope="session")
def meta() -> dict[str, Any]:
    return json.loads((DATA / "golden_meta.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def loaded(ckpt: Path) -> tuple[DualAR, FishTokenizer]:
    return load_ar(ckpt, device=torch.device("cpu"), dtype=torch.float32)


@pytest.fixture(scope="session")
def model(loaded: tuple[DualAR, FishTokenizer]) -> DualAR:
    return loaded[0]


@pytest.fixture(scope="session")
def tokenizer(loaded: tuple[DualAR, FishTokenizer]) -> FishTokenizer:
    return loaded[1]


def prompt_of(values: torch.Tensor) -> Prompt:
    """A golden matrix ``(codebooks + 1, T)`` as a prompt."""
    return Prompt(tokens=values[0].long(), codes=values[1:].long())


@pytest.fixture
def tools() -> Iterator[SimpleNamespace]:
    """``engine(model, source=..., **options)``, ``run(engine, values, params) -> (codes (C, n), reason)``."""
    engines: list[TorchEngine] = []

    def engine(model: DualAR, source: Any = None, **options: Any) -> TorchEngine:
        extra = {} if source is None else {"source": source}
        made = TorchEngine(model, parse_options({"kv_tokens": 4096, **options}), **extra)
        made.start()
        engines.append(made)
        return made

    def run(engine: TorchEngine, values: torch.Tensor, params: SamplingParams) -> tuple[np.ndarray, str]:
        sink = Sink()
        engine.submit("r", prompt_of(values), params, sink)
        return sink.result()

    yield SimpleNamespace(engine=engine, run=run, Sink=Sink, prompt=prompt_of)
    for made in engines:
        made.close()


@pytest.fixture(scope="session")
def served() -> Iterator[fish_serving.Running]:
    """The tiny checkpoint behind a server."""
    running = fish_serving.Running()
    yield running
    running.stop()


@pytest.fixture
def start() -> Iterator[Callable[..., fish_serving.Running]]:
    """Start further servers, with settings of their own."""
    running: list[fish_serving.Running] = []

    def begin(*args: Any, **options: Any) -> fish_serving.Running:
        running.append(fish_serving.Running(*args, **options))
        return running[-1]

    yield begin
    for one in running:
        one.stop()
