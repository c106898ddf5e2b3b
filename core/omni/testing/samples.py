"""What the conformance kit needs to know about a recipe that its declaration does not say."""

from __future__ import annotations

import io
import wave
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from omni.errors import ConfigError
from omni.messages import ReferenceAudio, SpeechRequest, TranscriptionRequest
from omni.plugins import import_path
from omni.recipe import Recipe, Speech

Request = SpeechRequest | TranscriptionRequest

SENTENCES = (
    "The old lighthouse keeper climbed the narrow stairs every evening before the fog came in.",
    "Fresh bread and strong coffee are the best reasons to get up early.",
    "My sister repairs violins in a small workshop behind the railway station.",
    "A quiet river runs through the valley and turns the wheels of three mills.",
    "Nobody expected the orchestra to finish the concert by candlelight.",
    "Please close the window, the wind is blowing my papers off the table.",
)


@dataclass(frozen=True)
class Effect:
    """Legal ``values`` of a parameter of which at least two must give different outputs, tried on ``request`` (the
    first sample when None): for a parameter that shows only in a special situation."""

    values: tuple[Any, ...]
    request: Request | None = None


@dataclass(frozen=True)
class Samples:
    """Requests to try a recipe with, and what it states about itself.

    Attributes:
        requests: at least two whose outputs differ. Speech: ordinary sentences of a few seconds, in a language the
            recipe speaks; transcription: short clips of speech with silence around it, whose text is not empty.
        refused: requests that the recipe itself must refuse with a 4xx error.
        effects: parameters that the built-in values show no effect of, by name.
        exempt: parameters that are not tried for an effect, each with the reason why; it is shown.
        skip: checks that are not run, by name, each with the reason why; it is shown.
        tolerance: the largest difference of one audio sample between two runs of the same request, alone or among
            others; None: the task's ``stream_tolerance``.
        time_tolerance: the same for times in transcripts, in seconds.
        keeps: text that is cut in parts must sound at least this share of the parts' durations, and the words of a
            clip must be found in a longer recording at least to this share.
        long_characters: length of the long text (at most the task's ``max_characters``).
        long_seconds: length of the long recording; more than the window of the model.
        cancel_seconds: what a stage may need to stop. More than 1 only where one step of the model is longer.
        memory_mb: growth of the process that is not a leak, over some hundred cancelled requests.
    """

    requests: tuple[Request, ...]
    refused: tuple[Request, ...] = ()
    effects: Mapping[str, Effect] = field(default_factory=dict)
    exempt: Mapping[str, str] = field(default_factory=dict)
    skip: Mapping[str, str] = field(default_factory=dict)
    tolerance: float | None = None
    time_tolerance: float = 0.02
    keeps: float = 0.8
    long_characters: int = 1000
    long_seconds: float = 75.0
    cancel_seconds: float = 1.0
    memory_mb: float = 20.0


def wav(samples: np.ndarray, sample_rate: int) -> np.ndarray:
    """Mono float samples in [-1, 1], shape ``(n,)``, as the bytes (uint8) of a 16-bit WAV file."""
    pcm = np.clip(np.round(np.asarray(samples, np.float64) * 32767), -32768, 32767).astype("<i2")
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(2)
        writer.setframerate(sample_rate)
        writer.writeframes(pcm.tobytes())
    return np.frombuffer(file.getvalue(), np.uint8)


def tone(seconds: float, frequency: float = 140.0, sample_rate: int = 16000) -> np.ndarray:
    """A harmonic sound with the rhythm of syllables; float32 ``(n,)``. No speech, but a voice's pitch."""
    time = np.arange(round(seconds * sample_rate)) / sample_rate
    wave_ = sum(np.sin(2 * np.pi * frequency * k * time) / k for k in range(1, 8))
    return np.asarray(0.2 * wave_ * (0.55 + 0.45 * np.sin(2 * np.pi * 4 * time)), np.float32)


def samples_of(recipe: Recipe) -> Samples:
    """What ``Recipe.samples`` gives, or the built-in ones.

    Raises:
        ConfigError: it gives something else, or there is nothing built in that fits the recipe.
    """
    if recipe.samples is not None:
        given = import_path(recipe.samples, f"samples of recipe {recipe.name!r}")()
        if not isinstance(given, Samples):
            raise ConfigError(f"{recipe.samples!r} must return omni.testing.Samples, it gave a {type(given).__name__}")
        return given
    if isinstance(recipe.task, Speech):
        return _sentences(recipe, recipe.task)
    return Samples(_noises(), skip=dict.fromkeys(_NEED_SPEECH, _NO_SPEECH))


_NO_SPEECH = "the recipe names no samples with speech in them; Recipe.samples would make this check possible"
_NEED_SPEECH = ("audio_is_never_shortened", "times_are_absolute")


def _sentences(recipe: Recipe, task: Speech) -> Samples:
    if task.languages is not None and "en" not in task.languages:
        raise ConfigError(
            f"the built-in sentences are English, which {recipe.name!r} does not speak: set Recipe.samples"
        )
    voice = task.voices[0].id if task.voices else ""
    cloned = task.cloning and not voice
    references = [ReferenceAudio(audio=wav(tone(2.0), 16000), text=SENTENCES[0])] if cloned else []
    language = "en" if task.languages is not None else None
    return Samples(
        tuple(
            SpeechRequest(text=text, voice=voice, language=language, references=list(references)) for text in SENTENCES
        )
    )


def _noises() -> tuple[TranscriptionRequest, ...]:
    quiet = np.zeros(8000, np.float32)
    return tuple(
        TranscriptionRequest(audio=wav(np.concatenate([quiet, tone(1.0 + 0.5 * i, 120.0 + 60 * i), quiet]), 16000))
        for i in range(3)
    )
