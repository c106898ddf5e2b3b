"""Voices and languages of the published models, and what a checkpoint at hand can do."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from omni import Recipe, Speech, Voice

LANGUAGES = {
    "chinese": "zh",
    "english": "en",
    "french": "fr",
    "german": "de",
    "italian": "it",
    "japanese": "ja",
    "korean": "ko",
    "portuguese": "pt",
    "russian": "ru",
    "spanish": "es",
}
"""The model's names for them, and their codes."""

AUTO = "auto"
"""As a language: found out from the text, as if none were given."""

SPEAKERS = {
    "vivian": "zh",
    "serena": "zh",
    "uncle_fu": "zh",
    "dylan": "zh",
    "eric": "zh",
    "ryan": "en",
    "aiden": "en",
    "ono_anna": "ja",
    "sohee": "ko",
}
"""The published voices and the language that each is at home in."""


def voice(name: str) -> Voice:
    return Voice(name, name=name.title(), language=SPEAKERS.get(name))


def by_code(names: Iterable[str]) -> dict[str, str]:
    """A model's names of languages by their codes; one without a code keeps its name. Dialects come with their speakers
    and cannot be asked for, as in the reference."""
    return {LANGUAGES.get(name, name): name for name in names if "dialect" not in name}


def speech_task(recipe: Recipe, folder: Path | None) -> Speech:
    """What the weights at hand can do, whatever the recipe's name promises: fine-tuned ones have other voices."""
    from qwen3_tts.config import load_config

    task = recipe.task
    assert isinstance(task, Speech)
    if folder is None:
        return task
    config = load_config(folder)
    own = config.talker.speakers if config.kind == "custom_voice" else {}
    known = [name for name in SPEAKERS if name in own]
    return task.model_copy(
        update={
            "voices": tuple(voice(name) for name in (*known, *(name for name in own if name not in SPEAKERS))),
            "languages": (AUTO, *by_code(config.talker.languages)),
            "cloning": config.kind == "base",
            "instructions": config.takes_instructions,
            "params": f"qwen3_tts.params:{'DesignParams' if config.kind == 'voice_design' else 'SpeechParams'}",
        }
    )
