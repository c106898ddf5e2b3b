"""Long texts and long recordings, made of short ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

import msgspec
import numpy as np

from omni.audio import open_audio, resample
from omni.messages import SpeechRequest, TranscriptionRequest
from omni.testing.samples import Request, wav


def decoded(audio: np.ndarray) -> tuple[np.ndarray, int]:
    """``(samples, sample_rate)`` of a file's bytes; mono float32 ``(n,)``."""
    with open_audio(audio) as reader:
        return np.concatenate(list(reader)), reader.sample_rate


def saying(request: SpeechRequest, text: str) -> SpeechRequest:
    return msgspec.structs.replace(request, text=text)


def repeated(parts: Sequence[str], characters: int) -> list[str]:
    """Parts in turn until they are about ``characters`` long when joined with spaces; at least one, never longer
    unless one part alone is."""
    chosen = [parts[0]]
    while len(" ".join([*chosen, parts[len(chosen) % len(parts)]])) <= characters:
        chosen.append(parts[len(chosen) % len(parts)])
    return chosen


@dataclass(frozen=True)
class Recording:
    """Clips with silence in between; ``starts`` and ``ends`` are seconds of each clip within the whole."""

    audio: np.ndarray
    order: tuple[int, ...]
    starts: tuple[float, ...]
    ends: tuple[float, ...]
    seconds: float


def recording(clips: Sequence[TranscriptionRequest], order: Sequence[int], gaps: Sequence[float]) -> Recording:
    """The clips in ``order``, ``gaps`` seconds of silence after each, as a WAV file at the first clip's rate."""
    opened = [decoded(clip.audio) for clip in clips]
    rate = opened[0][1]
    sounds = [samples if r == rate else resample(samples, r, rate) for samples, r in opened]
    parts: list[np.ndarray] = []
    starts, ends, at = [], [], 0
    for index, gap in zip(order, gaps, strict=True):
        sound, silence = sounds[index], np.zeros(round(gap * rate), np.float32)
        starts.append(at / rate)
        ends.append((at + len(sound)) / rate)
        parts += [sound, silence]
        at += len(sound) + len(silence)
    return Recording(wav(np.concatenate(parts), rate), tuple(order), tuple(starts), tuple(ends), at / rate)


def heard(words: Sequence[str], among: Sequence[str]) -> float:
    """Share of ``words`` that are found, in their order, ``among`` others."""
    blocks = SequenceMatcher(None, list(words), list(among), autojunk=False).get_matching_blocks()
    return sum(block.size for block in blocks) / max(1, len(words))


GAPS = (1.0, 12.0, 3.0)
"""Seconds of silence between the clips of a long recording, in turn."""


def long_recording(clips: Sequence[TranscriptionRequest], seconds: float) -> Recording:
    """All clips in turn for about ``seconds``: half of it without a pause, as a fast talker, then with gaps."""
    length = sum(recording(clips, [i], [0.0]).seconds for i in range(len(clips))) / len(clips)
    dense = max(len(clips), round(seconds / 2 / length))
    sparse = max(2, round(seconds / 2 / (length + sum(GAPS) / len(GAPS))))
    gaps = [0.0] * dense + [GAPS[i % len(GAPS)] for i in range(sparse)]
    return recording(clips, [i % len(clips) for i in range(len(gaps))], gaps)


def long_request(requests: Sequence[SpeechRequest | TranscriptionRequest], seconds: float) -> Request:
    """What the requests say, in one that needs several chunks of text or windows of audio."""
    first = requests[0]
    if isinstance(first, SpeechRequest):
        return saying(first, " ".join(r.text for r in requests if isinstance(r, SpeechRequest)))
    clips = [r for r in requests if isinstance(r, TranscriptionRequest)]
    return msgspec.structs.replace(first, audio=long_recording(clips, seconds).audio)
