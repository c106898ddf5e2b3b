"""Spans of text to one transcript with times from the start of the file."""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec

from omni import Aggregator, Segment, StageFailed, TranscriptChunk, Usage, Word
from whisper_asr.recognition import Recognised

# Whisper begins a segment with a space where its language has any; these have none to begin with.
_WITHOUT_SPACES = {"zh", "yue", "ja", "th", "lo", "my", "km", "bo"}


class Progress(msgspec.Struct):
    """``count`` spans have come; what was said last ended at ``time`` seconds."""

    count: int = 0
    complete: bool = False
    time: float = 0.0
    language: str | None = None
    spoken: bool = False
    cut: bool = False


class Transcript(Aggregator[Recognised, TranscriptChunk, Progress]):
    """Gives each span's text as it comes, and with the last one the duration and the language."""

    def open(self) -> Progress:
        return Progress()

    def add(self, state: Progress, item: Recognised, source: str) -> Iterable[TranscriptChunk]:
        if state.complete or item.position != state.count:
            raise StageFailed(f"span {item.position} came where {state.count} was expected")
        state.count += 1
        state.complete = item.last
        state.cut = state.cut or item.cut
        state.language = state.language or item.language
        segments = [self._absolute(state, item, segment) for segment in item.segments]
        text = self._text(state, item)
        if not text and not item.last:
            return
        yield TranscriptChunk(
            text=text,
            segments=segments,
            language=state.language,
            duration=item.start + item.seconds if item.last else None,
            usage=Usage(input_tokens=item.positions, output_tokens=item.tokens),
            finish_reason=None if not item.last else "length" if state.cut else "stop",
        )

    def result(self, state: Progress) -> Iterable[TranscriptChunk]:
        if not state.complete:
            raise StageFailed(f"the transcript ended after {state.count} spans without the last one")
        return ()

    @staticmethod
    def _text(state: Progress, item: Recognised) -> str:
        """The span's text, beginning with a space if it goes on after another one's and the language has spaces."""
        text = "".join(segment.text for segment in item.segments).strip()
        if not text:
            return ""
        space = state.spoken and item.language not in _WITHOUT_SPACES
        state.spoken = True
        return " " + text if space else text

    @staticmethod
    def _absolute(state: Progress, item: Recognised, segment: Segment) -> Segment:
        """The segment in seconds of the file.

        Whisper estimates times on a window padded to 30 s. What it puts after the end of the span, or before what was
        said last, is moved there: times never run backwards and never leave the file.
        """
        end_of_span = math.floor((item.start + item.seconds) * 1000) / 1000

        def place(time: float) -> float:
            state.time = max(state.time, min(round(item.start + time, 3), end_of_span))
            return state.time

        start = place(segment.start)
        words = [
            Word(word.word.strip(), place(word.start), place(word.end), word.probability) for word in segment.words
        ]
        return msgspec.structs.replace(
            segment,
            start=words[0].start if words else start,
            end=place(segment.end),
            text=segment.text.strip(),
            words=words,
        )
