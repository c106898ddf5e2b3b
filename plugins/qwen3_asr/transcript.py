"""Spans to one transcript with times from the start of the file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec

from omni import Aggregator, Message, StageFailed, TranscriptChunk
from qwen3_asr.languages import WITHOUT_SPACES
from qwen3_asr.messages import Aligned, Ending, Piece, Span, SpanInfo, Spoken
from qwen3_asr.times import segments


class Outline(Aggregator[Span, SpanInfo, None]):
    """Spans without their sound, which a span that is being written need not hold."""

    def open(self) -> None:
        return None

    def add(self, state: None, item: Span, source: str) -> Iterable[SpanInfo]:
        yield item.info()


class SpanText(Message):
    """A span that is written, for the aligner."""

    position: int
    language: str | None
    ending: Ending


class WrittenSpans(Aggregator[Spoken, SpanText, None]):
    """Keeps what ends a span."""

    def open(self) -> None:
        return None

    def add(self, state: None, item: Spoken, source: str) -> Iterable[SpanText]:
        if item.ending is not None:
            yield SpanText(position=item.position, language=item.language, ending=item.ending)


class Progress(msgspec.Struct):
    """``written`` spans are complete, ``aligned`` of them have their times; seconds of speech by language."""

    written: int = 0
    aligned: int = 0
    complete: bool = False
    begun: bool = False
    spoken: bool = False
    awaits_times: bool = False
    cut: bool = False
    languages: Counter[str] = msgspec.field(default_factory=Counter)


class Transcript(Aggregator[Piece, TranscriptChunk, Progress]):
    """Gives text as it is written, segments as they are aligned, and with the last span the duration, why the text ends
    (``length`` where any span was cut) and the language: that of most of the file, where it has several."""

    def open(self) -> Progress:
        return Progress()

    def add(self, state: Progress, item: Piece, source: str) -> Iterable[TranscriptChunk]:
        if isinstance(item, Spoken):
            return self._write(state, item)
        assert isinstance(item, Aligned)
        return self._align(state, item)

    def _write(self, state: Progress, item: Spoken) -> Iterable[TranscriptChunk]:
        if state.complete or item.position != state.written:
            raise StageFailed(f"span {item.position} came where {state.written} was expected")
        text = item.text
        if text and not state.begun:
            # The texts of two spans; within one the model puts the spaces.
            if state.spoken and item.language not in WITHOUT_SPACES:
                text = " " + text
            state.begun = state.spoken = True
        ending = item.ending
        if ending is not None:
            state.written += 1
            state.begun = False
            state.complete = ending.last
            state.awaits_times = state.awaits_times or ending.timed
            state.cut = state.cut or ending.cut
            if item.language is not None:
                state.languages[item.language] += max(1, round(ending.seconds))
        if not text and ending is None:
            return
        end = ending if ending is not None and ending.last else None
        yield TranscriptChunk(
            text=text,
            language=next((language for language, _ in state.languages.most_common(1)), None),
            duration=None if end is None else end.start + end.seconds,
            usage=item.usage,
            finish_reason=None if end is None else "length" if state.cut else "stop",
        )

    @staticmethod
    def _align(state: Progress, item: Aligned) -> Iterable[TranscriptChunk]:
        if item.position != state.aligned:
            raise StageFailed(f"the times of span {item.position} came where {state.aligned} was expected")
        state.aligned += 1
        if item.asked:
            ending = item.ending
            yield TranscriptChunk(segments=segments(ending.text, item.units, ending.start, ending.seconds))

    def result(self, state: Progress) -> Iterable[TranscriptChunk]:
        if not state.complete or (state.awaits_times and state.aligned != state.written):
            raise StageFailed(f"the transcript ended after {state.written} spans, {state.aligned} of them aligned")
        return ()
