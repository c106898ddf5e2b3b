"""A transcript as json, text, srt, vtt and verbose_json."""

from __future__ import annotations

import html
from typing import Any, Literal, TypeAlias, get_args

import msgspec

from omni.messages import Segment, TranscriptChunk, Usage
from omni.server.languages import name_of

Format: TypeAlias = Literal["json", "text", "srt", "vtt", "verbose_json"]
FORMATS: tuple[Format, ...] = get_args(Format)

CONTENT_TYPES: dict[Format, bytes] = {
    "json": b"application/json",
    "text": b"text/plain; charset=utf-8",
    "srt": b"application/x-subrip; charset=utf-8",
    "vtt": b"text/vtt; charset=utf-8",
    "verbose_json": b"application/json",
}


class Transcript:
    """All chunks of one request, joined."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self.segments: list[Segment] = []
        self.language: str | None = None
        self.finish_reason: str | None = None
        self._duration: float | None = None
        self._usage = Usage()
        self._counted = False

    def add(self, chunk: TranscriptChunk) -> None:
        self._texts.append(chunk.text)
        self.segments += chunk.segments
        self.language = chunk.language or self.language
        self.finish_reason = chunk.finish_reason or self.finish_reason
        self._duration = chunk.duration if chunk.duration is not None else self._duration
        if chunk.usage is not None:
            self._counted = True
            self._usage = Usage(
                self._usage.input_tokens + chunk.usage.input_tokens,
                self._usage.output_tokens + chunk.usage.output_tokens,
            )

    @property
    def text(self) -> str:
        return "".join(self._texts)

    @property
    def duration(self) -> float:
        """Seconds of the file; of what was heard in it, when the model does not tell."""
        if self._duration is not None:
            return self._duration
        return max((segment.end for segment in self.segments), default=0.0)

    def ending(self) -> dict[str, str]:
        """Why the text ends, where the model tells; beside OpenAI's fields."""
        return {} if self.finish_reason is None else {"finish_reason": self.finish_reason}

    def usage(self) -> dict[str, Any]:
        """Tokens where the model counts them, else the duration; both are OpenAI's shapes."""
        if not self._counted:
            return {"type": "duration", "seconds": self.duration}
        tokens = self._usage
        return {
            "type": "tokens",
            "input_tokens": tokens.input_tokens,
            "output_tokens": tokens.output_tokens,
            "total_tokens": tokens.input_tokens + tokens.output_tokens,
        }


def render(transcript: Transcript, kind: Format, granularities: tuple[str, ...]) -> bytes:
    """The body of an answer. ``granularities`` choose what verbose_json lists: ``segment``, ``word``."""
    if kind == "text":
        return transcript.text.encode()
    if kind == "srt":
        return srt(transcript.segments).encode()
    if kind == "vtt":
        return vtt(transcript.segments).encode()
    if kind == "json":
        return msgspec.json.encode({"text": transcript.text, "usage": transcript.usage()} | transcript.ending())
    return msgspec.json.encode(verbose(transcript, granularities))


def verbose(transcript: Transcript, granularities: tuple[str, ...]) -> dict[str, Any]:
    """OpenAI's verbose_json. Statistics that the model does not have are 0: clients require numbers."""
    answer: dict[str, Any] = {
        "task": "transcribe",
        "language": name_of(transcript.language),
        "duration": transcript.duration,
        "text": transcript.text,
    }
    if "segment" in granularities:
        answer["segments"] = [_segment(number, segment) for number, segment in enumerate(transcript.segments)]
    if "word" in granularities:
        answer["words"] = [
            {"word": word.word.strip(), "start": word.start, "end": word.end}
            for segment in transcript.segments
            for word in segment.words
        ]
    answer["usage"] = {"type": "duration", "seconds": transcript.duration}
    return answer | transcript.ending()


def _segment(number: int, segment: Segment) -> dict[str, Any]:
    return {
        "id": number,
        # The place in the sound in frames of 10 ms, as OpenAI counts it.
        "seek": int(segment.start * 100),
        "start": segment.start,
        "end": segment.end,
        "text": segment.text,
        "tokens": segment.tokens,
        "temperature": segment.temperature,
        "avg_logprob": segment.avg_logprob or 0.0,
        "compression_ratio": segment.compression_ratio or 0.0,
        "no_speech_prob": segment.no_speech_prob or 0.0,
    }


def srt(segments: list[Segment]) -> str:
    """SubRip: numbered from 1, milliseconds after a comma."""
    cues = (
        f"{number}\n{_time(segment.start, ',')} --> {_time(segment.end, ',')}\n{_line(segment.text)}\n"
        for number, segment in enumerate(segments, 1)
    )
    return "\n".join(cues)


def vtt(segments: list[Segment]) -> str:
    """WebVTT; its markup characters are escaped."""
    cues = (
        f"{_time(segment.start, '.')} --> {_time(segment.end, '.')}\n{html.escape(_line(segment.text), quote=False)}\n"
        for segment in segments
    )
    return "\n".join(["WEBVTT\n", *cues])


def _time(seconds: float, point: str) -> str:
    milliseconds = max(0, round(seconds * 1000))
    minutes, milliseconds = divmod(milliseconds, 60_000)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02d}:{minutes:02d}:{milliseconds // 1000:02d}{point}{milliseconds % 1000:03d}"


def _line(text: str) -> str:
    """One line: a blank one would end the cue, and an arrow would begin another."""
    return " ".join(text.split()).replace("-->", "->")
