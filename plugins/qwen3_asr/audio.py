"""From a file of any length to spans and their features."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from omni import BadRequest, Preprocess, PreprocessOptions, Transcription, TranscriptionRequest
from omni.audio import AudioSpan, open_audio
from qwen3_asr.features import SAMPLE_RATE, SHORTEST, log_mel
from qwen3_asr.languages import ALIGNED, NAMES, no_times, unknown_language
from qwen3_asr.live import LiveSettings
from qwen3_asr.messages import Span
from qwen3_asr.params import LiveParams
from qwen3_asr.spans import QuietSplitter
from qwen3_asr.units import nagisa, no_words

TIMED_SECONDS = 180.0
"""The longest span that the aligner is given, as in the reference."""
_SHORTEST_PART = SAMPLE_RATE // 2


class AudioOptions(PreprocessOptions):
    """A file longer than ``span_seconds`` is cut at quiet points up to ``search_seconds`` away from them. The spans are
    heard at the same time and independently; the reference cuts after 1200 seconds. ``live``: of live transcripts."""

    span_seconds: Annotated[float, Field(ge=1, le=1200)] = 180.0
    search_seconds: Annotated[float, Field(ge=0.1, le=30)] = 5.0
    live: LiveSettings = LiveSettings()


class Audio(Preprocess[TranscriptionRequest, Span]):
    """Decodes as it goes, so that memory holds a few spans of a file of any length."""

    Options: ClassVar[type[AudioOptions]] = AudioOptions
    options: AudioOptions

    def process(self, item: TranscriptionRequest) -> Iterator[Span]:
        params = LiveParams.model_validate(item.params)
        if item.language is not None and item.language not in NAMES:
            raise unknown_language(item.language)
        if item.timestamps and item.language is not None and item.language not in ALIGNED:
            raise no_times(item.language)
        if "word" in item.timestamps and item.language == "ja" and nagisa() is None:
            raise no_words()
        return self._spans(item, params)

    def _spans(self, item: TranscriptionRequest, params: LiveParams) -> Iterator[Span]:
        timed = bool(item.timestamps)
        live = params.written is not None
        spans = iter((_turn(item.audio),)) if live else self._cut(item, timed)
        for position, (span, last) in enumerate(_with_last(spans)):
            yield Span(
                position=position,
                last=last,
                start=span.start,
                seconds=span.end - span.start,
                mel=log_mel(_filled(span.samples if live else _level(span.samples), alone=position == 0 and last)),
                language=item.language,
                prompt=item.prompt or "",
                temperature=item.temperature or 0.0,
                seed=None if item.seed is None else item.seed + position,
                max_new_tokens=params.max_new_tokens,
                timed=timed,
                words="word" in item.timestamps,
                written=params.written,
                rollback=params.rollback,
                finishing=params.finishing,
            )

    def _cut(self, item: TranscriptionRequest, timed: bool) -> Iterator[AudioSpan]:
        task = self.context.recipe.task
        assert isinstance(task, Transcription)
        longest = min(self.options.span_seconds, TIMED_SECONDS) if timed else self.options.span_seconds
        splitter = QuietSplitter(SAMPLE_RATE, longest, min(self.options.search_seconds, longest / 2))
        empty = True
        with open_audio(item.audio, sample_rate=SAMPLE_RATE, max_seconds=task.max_seconds) as blocks:
            for block in blocks:
                empty = empty and not len(block)
                yield from splitter.push(block)
        if empty:
            raise BadRequest("the audio file is shorter than one sample", param="file")
        yield from splitter.finish()


def _turn(audio: np.ndarray) -> AudioSpan:
    """All that a live transcript has heard, uncut."""
    return AudioSpan(0, audio.view(np.float32), SAMPLE_RATE)


def _filled(samples: np.ndarray, *, alone: bool) -> np.ndarray:
    """With silence after it, where it is too short: half a second for a part of a longer file, as in the reference."""
    missing = (SHORTEST if alone else _SHORTEST_PART) - len(samples)
    return np.pad(samples, (0, missing)) if missing > 0 else samples


def _level(samples: np.ndarray) -> np.ndarray:
    """What is louder than full scale, which floating-point files can hold, is brought down to it."""
    peak = float(np.abs(samples).max())
    return samples / np.float32(peak) if peak > 1 else samples


def _with_last(spans: Iterator[AudioSpan]) -> Iterator[tuple[AudioSpan, bool]]:
    held: AudioSpan | None = None
    for span in spans:
        if held is not None:
            yield held, False
        held = span
    if held is not None:
        yield held, True
