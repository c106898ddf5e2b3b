"""OpenAI's own names, which many clients send whatever they are told; ``aliases: false`` switches them off."""

from __future__ import annotations

from collections.abc import Iterable

from omni.recipe import Speech, Voice
from omni.server.settings import ServerSettings

MODELS = {
    "gpt-4o-mini-tts": "speech",
    "gpt-4o-mini-tts-2025-03-20": "speech",
    "gpt-4o-mini-tts-2025-12-15": "speech",
    "tts-1": "speech",
    "tts-1-1106": "speech",
    "tts-1-hd": "speech",
    "tts-1-hd-1106": "speech",
    "gpt-transcribe": "transcription",
    "gpt-4o-transcribe": "transcription",
    "gpt-4o-mini-transcribe": "transcription",
    "gpt-4o-mini-transcribe-2025-03-20": "transcription",
    "gpt-4o-mini-transcribe-2025-12-15": "transcription",
    "whisper-1": "transcription",
}
"""Model names and the task each stands for. ``gpt-4o-transcribe-diarize`` is not among them: it promises speakers."""

VOICES = (
    "alloy",
    "ash",
    "ballad",
    "cedar",
    "coral",
    "echo",
    "fable",
    "marin",
    "nova",
    "onyx",
    "sage",
    "shimmer",
    "verse",
)
"""Each stands for the recipe's first voice, unless the recipe has one of that name."""


def model_aliases(settings: ServerSettings) -> dict[str, str]:
    """What a :class:`omni.service.Service` takes as ``aliases``."""
    return dict(MODELS) if settings.aliases else {}


def voices_of(task: Speech, settings: ServerSettings) -> dict[str, str]:
    """Every voice name that a recipe understands, with the id it stands for; the recipe's own come first."""
    names = {voice.id: voice.id for voice in task.voices}
    for voice in task.voices:
        if voice.name:
            # Clients written for speaches list names and send them back.
            names.setdefault(voice.name, voice.id)
    if settings.aliases:
        default = task.voices[0].id if task.voices else ""
        for name in VOICES:
            names.setdefault(name, default)
    return names


def spellings(names: Iterable[str]) -> dict[str, str]:
    """Names by how they read without upper case, but for those that differ in nothing else."""
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(name.casefold(), []).append(name)
    return {folded: same[0] for folded, same in found.items() if len(same) == 1}


def listed_voices(task: Speech, settings: ServerSettings) -> list[dict[str, str | None]]:
    """Voices as clients list them: ``id`` and ``name`` of each, aliases last with ``alias_of``."""
    own = [_listed(voice) for voice in task.voices]
    taken = {voice.id for voice in task.voices} | {voice.name for voice in task.voices}
    aliases: list[dict[str, str | None]] = []
    if settings.aliases:
        default = task.voices[0].id if task.voices else ""
        aliases = [{"id": name, "name": name, "alias_of": default} for name in VOICES if name not in taken]
    return own + aliases


def _listed(voice: Voice) -> dict[str, str | None]:
    return {"id": voice.id, "name": voice.name or voice.id, "language": voice.language}
