"""The tiny checkpoints, what the reference gives for them, and ways to run the plugin's parts."""

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
from safetensors.numpy import load_file
from sinks import Sink

from omni.engines.base import Prompt, SamplingParams
from omni.engines.torch import TorchEngine, parse_options
from qwen3_asr.aligner import Aligner
from qwen3_asr.encoder import AudioEncoder
from qwen3_asr.loader import load_aligner, load_asr, load_encoder, open_aligner, open_asr
from qwen3_asr.model import AUDIO, AsrModel
from qwen3_asr.tokenizer import AsrTokenizer

HERE = str(Path(__file__).parent)
if HERE not in sys.path:
    sys.path.insert(0, HERE)

import asr_serving  # noqa: E402

DATA = Path(__file__).parents[2] / "data" / "qwen3_asr"
CPU = torch.device("cpu")


@pytest.fixture(scope="session")
def folders() -> SimpleNamespace:
    return SimpleNamespace(asr=DATA / "asr", aligner=DATA / "forced_aligner")


@pytest.fixture(scope="session")
def golden() -> dict[str, np.ndarray]:
    return load_file(DATA / "golden.safetensors")


@pytest.fixture(scope="session")
def meta() -> dict[str, Any]:
    return json.loads((DATA / "golden.json").read_text("utf-8"))


@pytest.fixture(scope="session")
def wave(golden: dict[str, np.ndarray]) -> Callable[[str], np.ndarray]:
    """``wave("w1")``: float32 samples at 16 kHz."""
    return lambda name: golden[f"wav.{name}_int16"] / np.float32(32768)


@pytest.fixture(scope="session")
def tokenizer(folders: SimpleNamespace) -> AsrTokenizer:
    return open_asr(folders.asr)[1]


@pytest.fixture(scope="session")
def encoder(folders: SimpleNamespace) -> AudioEncoder:
    config, _ = open_asr(folders.asr)
    return load_encoder(folders.asr, config.audio, device=CPU, dtype=torch.float32)


@pytest.fixture(scope="session")
def model(folders: SimpleNamespace) -> AsrModel:
    return load_asr(folders.asr, device=CPU, dtype=torch.float32)[0]


@pytest.fixture(scope="session")
def aligner(folders: SimpleNamespace) -> tuple[Aligner, AudioEncoder, AsrTokenizer]:
    config, _ = open_aligner(folders.aligner)
    model, tokenizer = load_aligner(folders.aligner, device=CPU, dtype=torch.float32)
    return model, load_encoder(folders.aligner, config.audio, device=CPU, dtype=torch.float32), tokenizer


@pytest.fixture(scope="session")
def sink() -> type[Sink]:
    return Sink


@pytest.fixture(scope="session")
def stages(drive: SimpleNamespace, folders: SimpleNamespace) -> dict[str, Any]:
    """The loaded stages of the recipe with times, by name; they have no engine."""
    from omni.plugins import Plugins

    recipe = Plugins.load().recipe("qwen3-asr-0.6b-timestamps")
    plain = recipe.model_copy(update={"stages": tuple(spec for spec in recipe.stages if spec.name != "aligner")})
    only = recipe.model_copy(update={"stages": (recipe.stage("aligner"),)})
    return {**drive.load_stages(plain, folders.asr), **drive.load_stages(only, folders.aligner)}


@pytest.fixture
def generate() -> Iterator[Callable[..., Any]]:
    """``generate(model, ids, embeds, max_new_tokens, **sampling)``: see :meth:`Sink.tokens`. ``options``: the engine's;
    ``wait`` False gives the sink."""
    engines: dict[Any, TorchEngine] = {}

    def run(
        model: AsrModel,
        ids: Any,
        embeds: Any,
        max_new_tokens: int = 28,
        *,
        options: dict[str, Any] | None = None,
        wait: bool = True,
        **sampling: Any,
    ) -> Any:
        key = (id(model), repr(options))
        if key not in engines:
            engines[key] = TorchEngine(model, parse_options({"kv_tokens": 4096, **(options or {})}))
            engines[key].start()
        sink = Sink()
        prompt = Prompt(tokens=np.asarray(ids), embeds={AUDIO: embeds})
        params = SamplingParams(max_new_tokens=max_new_tokens, **{"temperature": 0.0, **sampling})
        engines[key].submit("r", prompt, params, sink)
        return sink.tokens() if wait else sink

    yield run
    for engine in engines.values():
        engine.close()


@pytest.fixture(scope="session")
def served() -> Iterator[asr_serving.Running]:
    """The tiny recogniser behind a server."""
    running = asr_serving.Running()
    yield running
    running.stop()


@pytest.fixture(scope="session")
def timing() -> Iterator[asr_serving.Running]:
    """The tiny recogniser with its aligner behind a server; spans of at most four seconds."""
    running = asr_serving.Running(
        "qwen3-asr-0.6b-timestamps", sets=("audio.span_seconds=4", f"aligner.weights={DATA / 'forced_aligner'}")
    )
    yield running
    running.stop()
