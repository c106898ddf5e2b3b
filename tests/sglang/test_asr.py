"""A recogniser on SGLang: text alone, with embeddings in the prompt. The embedded engine passes the same elsewhere."""

from __future__ import annotations

import asyncio
import io
import json
import wave
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from omni import TranscriptionRequest
from omni.config import configure
from omni.pipeline import Pipeline
from omni.plugins import Plugins
from omni.testing import conformance
from qwen3_asr.samples import noise
from qwen3_asr.transcripts import parse

WEIGHTS = Path(__file__).parents[1] / "data" / "qwen3_asr" / "asr"

plugins = Plugins.load([EntryPoint("qwen3_asr", "qwen3_asr", "omni"), EntryPoint("kept", "kept", "omni")])


SETS = ("ar.engine=kept", "ar.kept.max_total_tokens=16384", "ar.kept.max_running_requests=16")

TestConformance = conformance("qwen3-asr-0.6b", plugins=plugins, weights=str(WEIGHTS), sets=SETS, samples=noise())

CASES: dict[str, dict[str, str]] = {
    "w1.auto": {},
    "w2.auto": {},
    "w3.auto": {},
    "w2.english": {"language": "en"},
    "w2.context": {"prompt": "Qwen, hotword"},
    "w2.context_chinese": {"prompt": "Qwen, hotword", "language": "zh"},
}


def test_texts_are_the_references() -> None:
    """All of them at once."""
    sounds = load_file(WEIGHTS.parent / "golden.safetensors")
    info = json.loads((WEIGHTS.parent / "golden.json").read_text("utf-8"))["info"]

    def file(case: str) -> np.ndarray:
        buffer = io.BytesIO()
        with wave.open(buffer, "wb") as out:
            out.setnchannels(1)
            out.setsampwidth(2)
            out.setframerate(16_000)
            out.writeframes(sounds[f"wav.{case[:2]}_int16"].astype("<i2").tobytes())
        return np.frombuffer(buffer.getvalue(), np.uint8)

    async def heard(pipeline: Pipeline, case: str) -> str:
        request = TranscriptionRequest(audio=file(case), params={"max_new_tokens": 28}, **CASES[case])
        async with pipeline.submit(request) as stream:
            return "".join([chunk.text async for chunk in stream])

    async def run() -> list[str]:
        (config,) = configure([plugins.recipe("qwen3-asr-0.6b")], sets=SETS, weights=[str(WEIGHTS)])
        pipeline = await Pipeline.load(config, plugins)
        try:
            return list(await asyncio.gather(*(heard(pipeline, case) for case in CASES)))
        finally:
            await pipeline.close()

    names = {None: None, "en": "English", "zh": "Chinese"}
    wanted = [parse(info[case]["text"], names[fields.get("language")])[1] for case, fields in CASES.items()]
    assert asyncio.run(run()) == wanted
