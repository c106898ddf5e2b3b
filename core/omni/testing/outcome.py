"""What came of a request, and how two of them are compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from omni.errors import OmniError
from omni.messages import AudioChunk, Segment, TranscriptChunk


@dataclass
class Output:
    """The items of one request joined. Speech: ``audio`` float32 ``(n, channels)``. Transcription: ``text``,
    ``segments``, ``language``, ``duration`` (seconds). ``finish_reason``: the last one that was given."""

    items: list[Any] = field(default_factory=list)
    audio: np.ndarray | None = None
    sample_rate: int = 0
    text: str = ""
    segments: list[Segment] = field(default_factory=list)
    language: str | None = None
    duration: float | None = None
    finish_reason: str | None = None

    @property
    def seconds(self) -> float:
        """Length of the audio."""
        return 0.0 if self.audio is None else len(self.audio) / self.sample_rate

    def is_empty(self) -> bool:
        if self.audio is None:
            return not self.text.strip()
        return not np.any(self.audio)

    def words(self) -> list[str]:
        return "".join(c if c.isalnum() or c == "'" else " " for c in self.text.lower()).split()

    def audible_seconds(self) -> float:
        """Time in which something sounds: frames of 20 ms within 40 dB of the loudest one. Unlike the length it does
        not depend on the pauses that a text gets around it."""
        if self.audio is None or not len(self.audio):
            return 0.0
        size = max(1, self.sample_rate // 50)
        mono = self.audio.mean(axis=1)
        frames = mono[: len(mono) // size * size].reshape(-1, size)
        if not len(frames):
            return 0.0
        rms = np.sqrt(np.mean(np.square(frames), axis=1))
        return float(np.count_nonzero(rms > 0.01 * max(rms.max(), 1e-9)) * size / self.sample_rate)


Outcome = Output | OmniError


def keep(item: Any) -> Any:
    """A copy that nobody else can write into."""
    if isinstance(item, AudioChunk):
        return msgspec.structs.replace(item, samples=np.array(item.samples, copy=True))
    return item


def joined(items: Sequence[Any]) -> Output:
    """Join the chunks of one request."""
    output = Output(items=list(items))
    chunks = [item for item in items if isinstance(item, AudioChunk)]
    if chunks:
        parts = [np.asarray(c.samples, np.float32) for c in chunks]
        parts = [part[:, None] if part.ndim == 1 else part for part in parts]
        output.sample_rate = chunks[0].sample_rate
        output.audio = np.concatenate(parts)
    for item in items:
        if isinstance(item, TranscriptChunk):
            output.text += item.text
            output.segments += item.segments
            output.language = item.language or output.language
            output.duration = item.duration if item.duration is not None else output.duration
        if isinstance(item, AudioChunk | TranscriptChunk):
            output.finish_reason = item.finish_reason or output.finish_reason
    return output


def difference(one: Outcome, other: Outcome, tolerance: float = 0.0, time_tolerance: float = 0.0) -> str | None:
    """What differs, in words; None when the two are the same within the tolerances."""
    if isinstance(one, OmniError) or isinstance(other, OmniError):
        return None if _said(one) == _said(other) else f"{_said(one)} instead of {_said(other)}"
    if (one.audio is None) != (other.audio is None):
        return "one has audio, the other has none"
    if one.audio is not None and other.audio is not None:
        return _audio_difference(one, other, tolerance)
    if one.text != other.text:
        return f"the text {one.text!r} instead of {other.text!r}"
    if one.language != other.language:
        return f"the language {one.language!r} instead of {other.language!r}"
    if one.finish_reason != other.finish_reason:
        return f"the end {one.finish_reason!r} instead of {other.finish_reason!r}"
    return _segment_difference(one.segments, other.segments, time_tolerance)


def _said(outcome: Outcome) -> str:
    if isinstance(outcome, OmniError):
        return f"{type(outcome).__name__}({outcome.message!r}, param={outcome.param!r})"
    return f"an output ({outcome.text!r})" if outcome.audio is None else f"{outcome.seconds:.3f} s of audio"


def _audio_difference(one: Output, other: Output, tolerance: float) -> str | None:
    assert one.audio is not None
    assert other.audio is not None
    if one.sample_rate != other.sample_rate:
        return f"{one.sample_rate} Hz instead of {other.sample_rate} Hz"
    if one.audio.shape != other.audio.shape:
        return f"{len(one.audio)} samples instead of {len(other.audio)}"
    if not one.audio.size:
        return None
    distance = np.abs(one.audio - other.audio).max(axis=1)
    # Written so that NaN counts as a difference.
    wrong = np.flatnonzero(~(distance <= tolerance))
    if not len(wrong):
        return None
    return (
        f"sample {wrong[0]} of {len(distance)} is the first of {len(wrong)} that differ by more than {tolerance:g} "
        f"(at most {distance.max():.3g})"
    )


def _segment_difference(one: list[Segment], other: list[Segment], tolerance: float) -> str | None:
    if len(one) != len(other):
        return f"{len(one)} segments instead of {len(other)}"
    for i, (a, b) in enumerate(zip(one, other, strict=True)):
        if a.text != b.text or [w.word for w in a.words] != [w.word for w in b.words]:
            return f"segment {i} is {a.text!r} instead of {b.text!r}"
        times = [(a.start, b.start), (a.end, b.end)]
        times += [pair for v, w in zip(a.words, b.words, strict=True) for pair in ((v.start, w.start), (v.end, w.end))]
        if any(not abs(x - y) <= tolerance for x, y in times):
            return f"the times of segment {i} ({a.text!r}) differ by more than {tolerance:g} s"
    return None
