"""The tiny random checkpoints and the arrays of the reference that belong to them."""

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

from omni.engines.base import Prompt, SamplingParams
from omni.engines.torch import TorchEngine, parse_options
from qwen3_tts.config import load_config
from qwen3_tts.loader import load_talker
from qwen3_tts.model import Talker
from qwen3_tts.prompts import PromptBuilder
from qwen3_tts.tokenizer import QwenTokenizer

HERE = str(Path(__file__).parent)
if HERE not in sys.path:
    sys.path.insert(0, HERE)

import qwen_data  # noqa: E402
from qwen_data import DATA  # noqa: E402


@pytest.fixture(scope="session")
def folders() -> dict[str, Path]:
    """A folder in the Hub's layout for each kind of model."""
    return qwen_data.folders()


@pytest.fixture(scope="session")
def golden() -> dict[str, torch.Tensor]:
    return load_file(DATA / "golden.safetensors")


@pytest.fixture(scope="session")
def meta() -> dict[str, Any]:
    return json.loads((DATA / "golden.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def talkers(folders: dict[str, Path]) -> dict[str, Talker]:
    return {
        kind: load_talker(folder, device=torch.device("cpu"), dtype=torch.float32) for kind, folder in folders.items()
    }


@pytest.fixture(scope="session")
def builders(folders: dict[str, Path]) -> dict[str, PromptBuilder]:
    return {kind: PromptBuilder(load_config(folder), QwenTokenizer.load(folder)) for kind, folder in folders.items()}


@pytest.fixture
def tools() -> Iterator[SimpleNamespace]:
    """``engine(model, **options)``; ``submit(engine, prompt, params) -> sink``; ``run``, the same to its end."""
    engines: list[TorchEngine] = []

    def engine(model: Talker, **options: Any) -> TorchEngine:
        made = TorchEngine(model, parse_options({"kv_tokens": 8192, **options}))
        made.start()
        engines.append(made)
        return made

    def submit(engine: TorchEngine, prompt: Prompt, params: SamplingParams) -> Sink:
        sink = Sink()
        engine.submit("r", prompt, params, sink)
        return sink

    def run(engine: TorchEngine, prompt: Prompt, params: SamplingParams) -> tuple[np.ndarray, str]:
        return submit(engine, prompt, params).result()

    yield SimpleNamespace(engine=engine, submit=submit, run=run)
    for made in engines:
        made.close()


def greedy(frames: int, tail: list[int], *, repetition_penalty: float = 1.05) -> SamplingParams:
    return SamplingParams(
        max_new_tokens=frames, temperature=0.0, repetition_penalty=repetition_penalty, extra={"tail": tail}
    )


@pytest.fixture(scope="session")
def greedily() -> Callable[..., SamplingParams]:
    """``greedily(frames, tail, repetition_penalty=1.05)``"""
    return greedy
