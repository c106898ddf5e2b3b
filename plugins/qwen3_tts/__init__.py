"""Qwen3-TTS, 12 Hz: voices of its own, described voices and cloned ones; exact and streaming."""

from __future__ import annotations

from typing import Any

from omni import Recipe, Speech, StageSpec, Voice, Weights, hookimpl
from qwen3_tts.voices import AUTO, LANGUAGES, SPEAKERS, by_code, voice

_LICENSE = "Apache-2.0"
_FILES = ("*.json", "merges.txt", "*.safetensors", "speech_tokenizer/*")


def _stages(random: dict[str, Any] | None = None, *, pieces: bool = True) -> tuple[StageSpec, ...]:
    """``pieces``: a request is several items, a reference and pieces of its text."""
    options = {} if random is None else {"random": random}
    return (
        StageSpec("preprocess", "qwen3_tts.stages:Prepare", stream=pieces, options=options),
        StageSpec("reference", "qwen3_tts.reference:ReferenceEncoder", after="preprocess", options=options),
        StageSpec("collect", "qwen3_tts.reference:CollectVoice", after="reference"),
        StageSpec("ar", "qwen3_tts.stages:TalkerStage", after="collect", stream=True, options=options),
        StageSpec("vocoder", "qwen3_tts.vocoder:Vocoder", after="ar", stream=True, options=options),
    )


def _task(
    *, voices: tuple[Voice, ...] = (), cloning: bool = False, instructions: bool = False, params: str = "SpeechParams"
) -> Speech:
    return Speech(
        sample_rate=24_000,
        voices=voices,
        languages=(AUTO, *by_code(LANGUAGES)),
        cloning=cloning,
        instructions=instructions,
        seed=True,
        params=f"qwen3_tts.params:{params}",
        stream_tolerance=2e-4,
    )


def _recipe(name: str, repo: str, summary: str, task: Speech, samples: str) -> Recipe:
    described = task.params == "qwen3_tts.params:DesignParams"
    return Recipe(
        name=name,
        summary=summary,
        license=_LICENSE,
        aliases=(f"Qwen/{repo}", repo),
        task=task,
        task_of="qwen3_tts.voices:speech_task",
        weights=Weights(f"Qwen/{repo}", allow=_FILES),
        stages=_stages(pieces=not described),
        samples=f"qwen3_tts.samples:{samples}",
        extra="qwen",
    )


def _random(name: str, kind: str, summary: str, task: Speech, samples: str) -> Recipe:
    return Recipe(
        name=name,
        summary=f"{summary} with random weights: noise, not speech; for benchmarks and to try the API",
        license="Apache-2.0 (no weights of the model)",
        task=task,
        stages=_stages({"size": "tiny", "kind": kind}),
        samples=f"qwen3_tts.samples:{samples}",
        extra="qwen",
    )


@hookimpl
def omni_recipes() -> list[Recipe]:
    voices = tuple(voice(name) for name in SPEAKERS)
    about = "10 languages, 24 kHz, streaming frame by frame"
    cloned = _task(cloning=True)
    return [
        *(
            _recipe(
                f"qwen3-tts-{size}-base",
                f"Qwen3-TTS-12Hz-{size.upper()}-Base",
                f"Speech like a reference voice of some seconds, {about}",
                cloned,
                "clones",
            )
            for size in ("0.6b", "1.7b")
        ),
        *(
            _recipe(
                f"qwen3-tts-{size}-customvoice",
                f"Qwen3-TTS-12Hz-{size.upper()}-CustomVoice",
                f"Speech in nine voices{', told how to speak' if told else ''}, {about}",
                _task(voices=voices, instructions=told),
                "voices",
            )
            for size, told in (("0.6b", False), ("1.7b", True))
        ),
        _recipe(
            "qwen3-tts-1.7b-voicedesign",
            "Qwen3-TTS-12Hz-1.7B-VoiceDesign",
            f"Speech in a voice that 'instructions' describe, {about}",
            _task(instructions=True, params="DesignParams"),
            "descriptions",
        ),
        _random("qwen3-tts-random", "custom_voice", "The pipeline for voices", _task(voices=voices), "brief_voices"),
        _random("qwen3-tts-random-base", "base", "The pipeline for cloning", cloned, "brief_clones"),
    ]
