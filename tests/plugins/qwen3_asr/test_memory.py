"""What a long file holds while it is transcribed, through the whole pipeline."""

from __future__ import annotations

import asyncio
import threading
import weakref
from typing import Any

import numpy as np
import pytest
from asr_serving import WEIGHTS, wav_of

from omni import TranscriptionRequest
from omni.config import configure
from omni.pipeline import Pipeline
from omni.plugins import Plugins
from omni.testing import tone
from qwen3_asr import audio
from qwen3_asr.alignment import AlignerStage
from qwen3_asr.stages import AudioEncoderStage, Recogniser

SECONDS = 60
AT_ONCE = 16
"""Twice ``ar.parallel_items``."""


@pytest.mark.parametrize("times", [False, True])
def test_spans_under_way_are_bounded_whatever_the_length(monkeypatch: pytest.MonkeyPatch, times: bool) -> None:
    """The first of them waits until as many as may be are under way, so that a bound too high would show."""
    counts = {"made": 0, "done": 0, "most": 0, "held": 0}
    freed: list[None] = []  # any thread may free
    full = threading.Event()
    log_mel, encode, output, align = audio.log_mel, AudioEncoderStage.encode, Recogniser.output, AlignerStage.encode

    def counted(samples: np.ndarray) -> np.ndarray:
        mel = log_mel(samples)
        weakref.finalize(mel, freed.append, None)
        counts["made"] += 1
        counts["most"] = max(counts["most"], counts["made"] - counts["done"])
        counts["held"] = max(counts["held"], counts["made"] - len(freed))
        if counts["made"] == AT_ONCE:
            full.set()
        return mel

    def waiting(stage: Any, batch: Any) -> Any:
        assert full.wait(30)
        return encode(stage, batch)

    def ending(stage: Any, state: Any, step: Any) -> Any:
        counts["done"] += step.finish_reason is not None and not times
        return output(stage, state, step)

    def aligned(stage: Any, batch: Any) -> Any:
        counts["done"] += len(batch)
        return align(stage, batch)

    monkeypatch.setattr(audio, "log_mel", counted)
    monkeypatch.setattr(AudioEncoderStage, "encode", waiting)
    monkeypatch.setattr(Recogniser, "output", ending)
    monkeypatch.setattr(AlignerStage, "encode", aligned)
    chunks = asyncio.run(transcribe(times))
    assert counts["made"] == counts["done"] > SECONDS / 2
    assert counts["most"] == AT_ONCE
    assert counts["held"] <= AT_ONCE + 4, "a thread may still hold the one that it has just done"
    assert max(chunk.duration or 0 for chunk in chunks) == pytest.approx(SECONDS)


async def transcribe(times: bool) -> list[Any]:
    name = "qwen3-asr-0.6b" + ("-timestamps" if times else "")
    sets = ["audio.span_seconds=1", "audio.search_seconds=0.1", "audio.workers=1", "encoder.max_batch=1"]
    if times:
        sets += ["aligner.max_batch=1", f"aligner.weights={WEIGHTS.parent / 'forced_aligner'}"]
    plugins = Plugins.load()
    (config,) = configure([plugins.recipe(name)], sets=sets, weights=[str(WEIGHTS)])
    pipeline = await Pipeline.load(config, plugins)
    request = TranscriptionRequest(
        audio=wav_of(tone(SECONDS)),
        language="en",
        params={"max_new_tokens": 2},
        timestamps=["word"] if times else [],
    )
    try:
        return [chunk async for chunk in pipeline.submit(request)]
    finally:
        await pipeline.close()
