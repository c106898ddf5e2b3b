"""From text to notes, from notes to sound. Put a model in place of the arithmetic and nothing else changes."""

from collections.abc import Iterator, Sequence
from typing import Annotated

import numpy as np
from omni import AudioChunk, DecodeJob, Decoder, DecoderOptions, Message, Preprocess, SpeechRequest
from pydantic import Field

from my_plugin.params import Params

SAMPLE_RATE = 24_000


class Note(Message):
    """One character: its frequency (0: silence) and the shape of its wave."""

    hertz: float
    voice: str


class Notes(Preprocess[SpeechRequest, Note]):
    """Runs in a pool of threads. An iterator is advanced only while the next stage has room."""

    def process(self, item: SpeechRequest) -> Iterator[Note]:
        params = Params.model_validate(item.params)
        voice = item.voice or "sine"
        for character in item.text:
            hertz = 0.0 if character.isspace() else params.pitch * (220.0 + 9.0 * (ord(character) % 601))
            yield Note(hertz=hertz, voice=voice)


class SynthOptions(DecoderOptions):
    """Set with `omni launch --set synth.volume=0.1`."""

    max_chunk: Annotated[int, Field(ge=1)] = 8
    chunk_growth: Annotated[float, Field(ge=1)] = 2.0
    volume: Annotated[float, Field(gt=0.0, le=1.0)] = 0.2
    note_seconds: Annotated[float, Field(ge=0.01, le=1.0)] = 0.06


class Phase:
    """State of one stream: where its wave is, in cycles. Notes join without a click, however they are chunked."""

    def __init__(self) -> None:
        self.cycles = 0.0


class Synth(Decoder[Note, AudioChunk]):
    """Several streams share one call; each brings its state and its new notes."""

    Options = SynthOptions

    def open(self, first: Note) -> Phase:
        return Phase()

    def decode(self, batch: Sequence[DecodeJob]) -> list[list[AudioChunk]]:
        return [[self._chunk(job.state, note) for note in job.items] for job in batch]

    def _chunk(self, phase: Phase, note: Note) -> AudioChunk:
        count = round(self.options.note_seconds * SAMPLE_RATE)
        cycles = phase.cycles + note.hertz / SAMPLE_RATE * np.arange(1, count + 1)
        phase.cycles = float(cycles[-1] % 1.0)
        wave = np.sin(2 * np.pi * cycles)
        if note.voice == "square":
            wave = np.sign(wave)
        if note.hertz == 0.0:
            wave = np.zeros(count)
        return AudioChunk(samples=(self.options.volume * wave).astype(np.float32), sample_rate=SAMPLE_RATE)
