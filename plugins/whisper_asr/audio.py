"""From a file of any length to spans of speech that fit Whisper's window."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from omni import BadRequest, Message, Preprocess, PreprocessOptions, Transcription, TranscriptionRequest
from omni.audio import AudioSpan, SilenceSplitter, open_audio
from whisper_asr import SAMPLE_RATE, WINDOW_SECONDS
from whisper_asr.library import faster_whisper
from whisper_asr.params import Params

_NOTHING = np.zeros(0, np.float32)


class Span(Message):
    """A piece of the file, ``start`` and ``seconds`` of it in seconds. Spans follow each other without gaps.

    ``samples``: float32 ``(n,)`` mono 16 kHz, only its speech: the stretches ``kept`` (first and one-past-last
    sample within the span), one after another; empty where nobody speaks. ``probe``: the samples of the first
    span of the file in which somebody speaks, by which the language is detected; empty where it is known or where
    that is this span. ``last`` marks the last span.
    """

    position: int
    last: bool
    start: float
    seconds: float
    samples: np.ndarray
    kept: list[tuple[int, int]]
    probe: np.ndarray
    language: str | None
    prompt: str | None
    temperature: float
    words: bool
    beam_size: int | None


class AudioOptions(PreprocessOptions):
    """``threshold``: probability of speech from which on the detector believes it."""

    threshold: Annotated[float, Field(gt=0, lt=1)] = 0.5


class Audio(Preprocess[TranscriptionRequest, Span]):
    """Decodes as it goes, so that memory holds a few spans of a file of any length."""

    Options: ClassVar[type[AudioOptions]] = AudioOptions

    def load(self) -> None:
        vad = faster_whisper().vad
        self._speech_timestamps = vad.get_speech_timestamps
        self._vad_options = vad.VadOptions(threshold=self.options.threshold)
        vad.get_vad_model()

    def process(self, item: TranscriptionRequest) -> Iterator[Span]:
        params = Params.model_validate(item.params)
        temperature = item.temperature or 0.0
        if not 0 <= temperature <= 1:
            raise BadRequest(f"temperature must be from 0 to 1, got {temperature}", param="temperature")
        if temperature and params.beam_size is not None:
            raise BadRequest("beam_size has no meaning with a temperature above 0, which samples", param="beam_size")
        return self._spans_of(item, params, temperature)

    def _spans_of(self, item: TranscriptionRequest, params: Params, temperature: float) -> Iterator[Span]:
        language = item.language or self._only_language()
        probe = _NOTHING
        for position, (span, last) in enumerate(_with_last(self._cut(item))):
            kept = self._speech(span.samples) if params.vad_filter else [(0, len(span.samples))]
            speech = np.concatenate([_NOTHING, *(span.samples[start:end] for start, end in kept)])
            yield Span(
                position=position,
                last=last,
                start=span.start,
                seconds=span.end - span.start,
                samples=speech,
                kept=kept,
                probe=probe,
                language=language,
                prompt=item.prompt,
                temperature=temperature,
                words="word" in item.timestamps,
                beam_size=params.beam_size,
            )
            if language is None and not len(probe):
                probe = speech

    def _only_language(self) -> str | None:
        task = self.context.recipe.task
        assert isinstance(task, Transcription)
        return task.languages[0] if task.languages is not None and len(task.languages) == 1 else None

    def _cut(self, item: TranscriptionRequest) -> Iterator[AudioSpan]:
        task = self.context.recipe.task
        assert isinstance(task, Transcription)
        splitter = SilenceSplitter(SAMPLE_RATE, WINDOW_SECONDS)
        with open_audio(item.audio, sample_rate=SAMPLE_RATE, max_seconds=task.max_seconds) as blocks:
            for block in blocks:
                yield from splitter.push(block)
        yield from splitter.finish()

    def _speech(self, samples: np.ndarray) -> list[tuple[int, int]]:
        found = self._speech_timestamps(samples, self._vad_options, SAMPLE_RATE)
        return [(int(stretch["start"]), int(stretch["end"])) for stretch in found]


def _with_last(spans: Iterator[AudioSpan]) -> Iterator[tuple[AudioSpan, bool]]:
    held: AudioSpan | None = None
    for span in spans:
        if held is not None:
            yield held, False
        held = span
    if held is not None:
        yield held, True
