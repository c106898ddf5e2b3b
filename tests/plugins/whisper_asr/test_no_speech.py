"""Sounds that nobody speaks give no words, soon; what somebody does say again and again, or softly, stays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from whisper_normalizer.english import EnglishTextNormalizer

from omni import TranscriptChunk
from whisper_asr import decoding

RATE = 16_000
Transcribe = Callable[..., list[TranscriptChunk]]
normal = EnglishTextNormalizer()


def _time(seconds: float) -> np.ndarray:
    return np.arange(int(seconds * RATE)) / RATE


def modulated(hertz: float, beats: float, seconds: float = 20.0, level: float = 0.3) -> np.ndarray:
    time = _time(seconds)
    return level * np.sin(2 * np.pi * hertz * time) * (0.5 + 0.5 * np.sin(2 * np.pi * beats * time))


def vowel(hertz: float, beats: float) -> np.ndarray:
    """A buzz with the resonances of an "a", swelling and fading."""
    time = _time(20)
    pitches = hertz * np.arange(1, 40)
    levels = sum(np.exp(-(((pitches - peak) / 120) ** 2)) for peak in (700, 1200, 2600))
    wave = sum(level * np.sin(2 * np.pi * pitch * time) for level, pitch in zip(levels, pitches, strict=True))
    return 0.2 * wave / np.abs(wave).max() * (0.5 + 0.5 * np.sin(2 * np.pi * beats * time))


def hum(hertz: float) -> np.ndarray:
    return sum(0.2 / k * np.sin(2 * np.pi * hertz * k * _time(20)) for k in (1, 2, 3))


def chords() -> np.ndarray:
    chance, time = np.random.default_rng(0), _time(0.5)
    roots = 220 * 2 ** (chance.integers(0, 12, 40) / 12)
    parts = [(step * overtone, overtone) for step in (1, 1.26, 1.5) for overtone in (1, 2, 3)]
    return np.concatenate(
        [0.08 * np.exp(-3 * time) * sum(np.sin(2 * np.pi * root * k * time) / h for k, h in parts) for root in roots]
    )


def clicks() -> np.ndarray:
    chance, wave = np.random.default_rng(0), np.zeros(20 * RATE)
    for start in range(0, len(wave) - 80, RATE // 4):
        wave[start : start + 80] = chance.normal(0, 0.4, 80)
    return wave


def babble() -> np.ndarray:
    """Six buzzes of wandering pitch, each louder and softer at the pace of syllables, and noise."""
    chance, time = np.random.default_rng(1), _time(20)
    wave = 0.3 * chance.normal(0, 1, len(time))
    for _ in range(6):
        pitch = chance.uniform(90, 250) * (1 + 0.05 * np.sin(2 * np.pi * chance.uniform(0.3, 2) * time))
        phase = 2 * np.pi * np.cumsum(pitch) / RATE
        syllables = np.interp(time, np.arange(0, 20.2, 0.12), chance.uniform(0, 1, 169) ** 2)
        wave += syllables * sum(np.sin(k * phase) / k for k in range(1, 12))
    return 0.2 * wave / np.abs(wave).max()


# The first five are speech to the detector, and loops of a phrase to Whisper.
SOUNDS = {
    "tone 150 Hz": modulated(150, 4),
    "tone 220 Hz": modulated(220, 3),
    "tone 120 Hz": modulated(120, 5),
    "soft tone": modulated(150, 4, level=0.02),
    "vowel": vowel(150, 6),
    "short tone": modulated(150, 4, seconds=3),
    "minute": modulated(150, 4, seconds=60),
    "hum": hum(50),
    "chords": chords(),
    "clicks": clicks(),
    "babble": babble(),
    "noise": np.random.default_rng(3).normal(0, 0.1, 20 * RATE) * (0.5 + 0.5 * np.sin(2 * np.pi * 4 * _time(20))),
}
HEARD_AS_SPEECH = ("tone 150 Hz", "tone 220 Hz", "tone 120 Hz", "soft tone", "vowel")


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of tokens of each attempt."""
    counts: list[int] = []
    attempt = decoding.Window._attempt

    def counted(self: Any, *args: Any) -> decoding.Attempt:
        result = attempt(self, *args)
        counts.append(len(result.result.sequences_ids[0]))
        return result

    monkeypatch.setattr(decoding.Window, "_attempt", counted)
    return counts


@pytest.mark.parametrize("name", SOUNDS)
def test_no_words_are_invented(transcribe: Transcribe, written: list[int], name: str) -> None:
    [*_, chunk] = chunks = transcribe(SOUNDS[name].astype(np.float32), RATE, timestamps=["word"])
    assert ("".join(c.text for c in chunks), [c.segments for c in chunks if c.segments]) == ("", [])
    assert chunk.duration == pytest.approx(len(SOUNDS[name]) / RATE)
    if name in HEARD_AS_SPEECH:
        # A loop alone would take all 224 tokens of the window.
        assert 0 < sum(written) < 160


@pytest.fixture(scope="module")
def sentence(speak: Any) -> np.ndarray:
    return speak("We will meet again tomorrow behind the little wooden shed.")


@pytest.mark.parametrize("level", [1.0, 0.01])
def test_a_sentence_said_seven_times(transcribe: Transcribe, sentence: np.ndarray, level: float) -> None:
    chunks = transcribe(level * np.tile(sentence, 7), timestamps=["word"])
    words = normal("".join(chunk.text for chunk in chunks)).split()
    assert words == normal("We will meet again tomorrow behind the little wooden shed.").split() * 7


def test_a_word_said_24_times(transcribe: Transcribe, speak: Any) -> None:
    sound = np.tile(speak("Yes."), 24)
    words = normal("".join(chunk.text for chunk in transcribe(sound))).split()
    assert set(words) == {"yes"}
    assert 12 <= len(words) <= 36
    assert transcribe(sound) == transcribe(sound)


def test_speech_beside_a_tone(transcribe: Transcribe, sentence: np.ndarray) -> None:
    tone = np.repeat(modulated(150, 4, seconds=12), 3)[::2].astype(np.float32)  # at 24 kHz
    chunks = transcribe(np.concatenate([tone, sentence]))
    assert "little wooden shed" in "".join(chunk.text for chunk in chunks)
