"""Qwen3-TTS on SGLang: text fed beside the codes, embeddings of a voice in the prompt. The embedded engine passes the
same in the plugin's own tests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from typing import Any

import numpy as np
import pytest
import torch
from qwen_cases import CASES, wording
from qwen_data import DATA, folders
from safetensors.torch import load_file

from omni.engines.base import SamplingParams
from omni.engines.torch import LayerStack, TorchEngine, parse_options
from omni.plugins import Plugins
from omni.testing import conformance
from qwen3_tts.config import load_config
from qwen3_tts.prompts import PromptBuilder
from qwen3_tts.samples import brief_clones
from qwen3_tts.source import TalkerSource
from qwen3_tts.tokenizer import QwenTokenizer

plugins = Plugins.load([EntryPoint("qwen3_tts", "qwen3_tts", "omni"), EntryPoint("kept", "kept", "omni")])


OPTIONS = {"max_total_tokens": 16384, "max_running_requests": 16}

TestConformance = conformance(
    "qwen3-tts-0.6b-base",
    plugins=plugins,
    weights=str(folders()["base"]),
    sets=["ar.engine=kept", *(f"ar.kept.{name}={value}" for name, value in OPTIONS.items())],
    samples=brief_clones(),
)


def source(kind: str) -> TalkerSource:
    return TalkerSource(device="cpu", dtype="float32", folder=str(folders()[kind]))


@pytest.fixture(scope="module")
def engine() -> Any:
    """The one that the conformance kit has left running."""
    import kept

    return kept.engine(source("base"), OPTIONS)


@pytest.fixture(scope="module")
def embedded() -> Iterator[TorchEngine]:
    model = source("base").build(LayerStack, device=torch.device("cpu"))
    engine = TorchEngine(model, parse_options({"kv_tokens": 8192}))
    engine.start()
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def golden() -> dict[str, torch.Tensor]:
    return load_file(DATA / "golden.safetensors")


@pytest.fixture(scope="module")
def builders() -> dict[str, PromptBuilder]:
    return {kind: PromptBuilder(load_config(folder), QwenTokenizer.load(folder)) for kind, folder in folders().items()}


def test_greedy_codes_are_the_references(engine, builders, golden, tools) -> None:
    """All of them at once. The kinds of checkpoints share their talker."""
    info = json.loads((DATA / "golden.json").read_text("utf-8"))["info"]
    sinks = {}
    for case in CASES:
        said = wording(builders, golden, case)
        params = SamplingParams(
            max_new_tokens=info[case]["tokens"],
            temperature=0.0,
            repetition_penalty=1.0 if case == "cv_en_norep" else 1.05,
            extra={"tail": said.tail},
        )
        sinks[case] = tools.submit(engine, said.prompt, params)
    for case, sink in sinks.items():
        codes, reason = sink.result()
        assert reason == ("stop" if info[case]["eos"] else "length"), case
        assert np.array_equal(codes[: info[case]["frames"]], golden[f"{case}.codes"]), case


def test_seeds_give_the_codes_of_the_embedded_engine(engine, embedded, builders, golden, tools) -> None:
    requests = []
    for seed, case in enumerate(("cv_en", "base_icl", "base_xvec_stream", "vd")):
        said = wording(builders, golden, case)
        params = SamplingParams(
            max_new_tokens=24,
            temperature=0.9,
            top_k=50,
            top_p=(1.0, 0.8)[seed % 2],
            repetition_penalty=1.05,
            seed=seed,
            extra={"tail": said.tail},
        )
        requests.append((said.prompt, params))
    alone = [tools.run(embedded, *request) for request in requests]
    sinks = [tools.submit(engine, *request) for request in requests]
    assert [sink.result() for sink in sinks] == alone
    assert len({str(codes) for codes, _ in alone}) == len(requests)
