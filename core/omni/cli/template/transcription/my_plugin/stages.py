"""From a file to pieces of sound, to notes, to text. Put a model in place of `Hear` and nothing else changes."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from omni import (
    Aggregator,
    Encoder,
    EncoderOptions,
    Message,
    Preprocess,
    Segment,
    TranscriptChunk,
    Transcription,
    TranscriptionRequest,
)
from omni.audio import open_audio

from my_plugin.params import Params

SAMPLE_RATE = 16_000
FRAME = 160  # samples, 10 ms
PIECE = 100 * FRAME
SILENCE = -1
MIN_FRAMES = 3
NAMES = ("A", "As", "B", "C", "Cs", "D", "Ds", "E", "F", "Fs", "G", "Gs")


class Piece(Message):
    """Up to a second of sound, float32 `(n,)`, 16 kHz; `threshold` as in the request."""

    samples: np.ndarray
    threshold: float


class Heard(Message):
    """The note of every frame in semitones above 440 Hz, or SILENCE; `seconds` is the piece's length."""

    notes: list[int]
    seconds: float


class Audio(Preprocess[TranscriptionRequest, Piece]):
    """Decodes as it goes: however long the file, only a piece of it is in memory."""

    def process(self, item: TranscriptionRequest) -> Iterator[Piece]:
        params = Params.model_validate(item.params)
        task = self.context.recipe.task
        assert isinstance(task, Transcription)
        rest = np.zeros(0, np.float32)
        with open_audio(item.audio, sample_rate=SAMPLE_RATE, max_seconds=task.max_seconds) as blocks:
            for block in blocks:
                rest = np.concatenate([rest, block])
                while len(rest) > PIECE:
                    yield Piece(samples=rest[:PIECE], threshold=params.threshold)
                    rest = rest[PIECE:]
        yield Piece(samples=rest, threshold=params.threshold)


class Hear(Encoder[Piece, Heard]):
    """Pieces of many requests share a batch, and equal ones are heard once: omni makes the cache key from the content.
    Cache and batch can be set, for example `omni launch --set hear.max_batch=32`."""

    class Options(EncoderOptions):
        max_batch: int = 16
        cache_mb: float = 16.0

    def encode(self, batch: Sequence[Piece]) -> list[Heard]:
        return [Heard(notes=_notes(p.samples, p.threshold), seconds=len(p.samples) / SAMPLE_RATE) for p in batch]


def _notes(samples: np.ndarray, threshold: float) -> list[int]:
    """The loudest frequency of every frame, if it is a note between A4 and A6."""
    frames = np.pad(samples, (0, -len(samples) % FRAME)).reshape(-1, FRAME)
    spectrum = np.abs(np.fft.rfft(frames * np.hanning(FRAME), 4096, axis=1))
    hertz = spectrum.argmax(axis=1) * SAMPLE_RATE / 4096
    semitones = np.round(12 * np.log2(np.maximum(hertz, 1.0) / 440.0)).astype(int)
    audible = np.sqrt(np.mean(frames**2, axis=1)) >= threshold
    return [int(n) if loud and 0 <= n <= 24 else SILENCE for n, loud in zip(semitones, audible, strict=True)]


class Line:
    """State of one request: the note that sounds now and since which frame."""

    def __init__(self) -> None:
        self.note = SILENCE
        self.since = 0
        self.frames = 0
        self.seconds = 0.0
        self.written = False

    def end_note(self) -> Iterator[TranscriptChunk]:
        """Shorter sounds than MIN_FRAMES are clicks."""
        if self.note == SILENCE or self.frames - self.since < MIN_FRAMES:
            return
        name = f"{NAMES[self.note % 12]}{4 + (self.note + 9) // 12}"
        text = f" {name}" if self.written else name
        self.written = True
        start, end = self.since * FRAME / SAMPLE_RATE, self.frames * FRAME / SAMPLE_RATE
        yield TranscriptChunk(text=text, segments=[Segment(text=text, start=start, end=end)])


class Write(Aggregator[Heard, TranscriptChunk, Line]):
    """Joins pieces into text with absolute times; a note that crosses from one piece to the next stays one."""

    def open(self) -> Line:
        return Line()

    def add(self, state: Line, item: Heard, source: str) -> Iterable[TranscriptChunk]:
        for note in item.notes:
            if note != state.note:
                yield from state.end_note()
                state.note, state.since = note, state.frames
            state.frames += 1
        state.seconds += item.seconds

    def result(self, state: Line) -> Iterable[TranscriptChunk]:
        yield from state.end_note()
        yield TranscriptChunk(duration=state.seconds, language="en")
