"""Text to phonemes, phonemes to sound, and the check that nothing was lost on the way."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

import msgspec
import numpy as np
from pydantic import Field

from hibari_tts import SAMPLE_RATE, SPEEDS, VOICE
from hibari_tts.text import Reader
from omni import (
    Aggregator,
    AudioChunk,
    BadRequest,
    DecodeJob,
    Decoder,
    DecoderOptions,
    Message,
    MissingDependency,
    Preprocess,
    SpeechRequest,
    StageFailed,
    Usage,
    WeightsError,
)
from omni.audio import split_text

HOP = 300  # samples of one acoustic frame: 12.5 ms

# Memory and time of one synthesis grow with its length; 400 phonemes are 25 s of speech.
MAX_PHONEMES = 400
MAX_CHARACTERS = 280

_CLAUSE_ENDS = ",;:—.!?"
_SEED_MASK = 2**64 - 1


class Sentence(Message):
    """What is synthesised at once. ``phonemes`` in the model's alphabet, at most ``MAX_PHONEMES``;
    ``position`` counts the sentences of a request from 0, ``last`` marks its last one."""

    position: int
    last: bool
    text: str
    phonemes: str
    speed: float
    seed: int


class Spoken(Message):
    """The sound of one :class:`Sentence`: float32 ``(frames * HOP,)``; ``inputs`` is its number of phonemes."""

    position: int
    last: bool
    samples: np.ndarray
    frames: int
    inputs: int


def _import_hibari() -> Any:
    # onnxruntime reads this when it is first imported; without it, it writes a device id below HOME.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    try:
        import hibari.g2p
        import hibari.tts
        import hibari.voices
    except ImportError as error:
        raise MissingDependency(f"{error}: pip install 'hibari-tts==0.2.1'") from error
    return hibari


class Text(Preprocess[SpeechRequest, Sentence]):
    """Refuses what cannot be spoken, cuts the text into sentences and gives their phonemes."""

    def load(self) -> None:
        hibari = _import_hibari()
        self._split_sentences = hibari.tts.Hibari.split_sentences
        self._g2p = hibari.g2p.G2P()
        self._normalize = hibari.g2p.normalize
        self._silent_tags = hibari.g2p.PUNCT_TAGS
        self._context = hibari.g2p.Context()
        unknown_words = self._g2p.oov  # loads its network
        # It has letters of other scripts too, which it turns into noise.
        latin = [char for char in unknown_words.cin if unicodedata.name(char).startswith("LATIN")]
        self._reader = Reader(latin, unknown_words.maxlen, self._known)

    def _known(self, word: str) -> bool:
        return self._g2p.lexicon.get_word(word, "NN", None, self._context)[0] is not None

    def process(self, item: SpeechRequest) -> Iterator[Sentence]:
        if item.voice not in ("", VOICE):
            raise BadRequest(f"voice {item.voice!r} does not exist; there is {VOICE!r}", param="voice")
        if not SPEEDS[0] <= item.speed <= SPEEDS[1]:
            raise BadRequest(f"speed must be from {SPEEDS[0]} to {SPEEDS[1]}, got {item.speed}", param="speed")
        return self._sentences_of(self._reader.read(item.text), item)

    def _sentences_of(self, text: str, item: SpeechRequest) -> Iterator[Sentence]:
        waiting: Sentence | None = None
        for position, (sentence, phonemes) in enumerate(self._phonemes(text)):
            if waiting is not None:
                yield waiting
            waiting = Sentence(
                position=position,
                last=False,
                text=sentence,
                phonemes=phonemes,
                speed=item.speed,
                seed=0 if item.seed is None else item.seed,
            )
        if waiting is None:
            raise BadRequest("input has nothing to speak", param="input", code="unspeakable_text")
        yield msgspec.structs.replace(waiting, last=True)

    def _phonemes(self, text: str) -> Iterator[tuple[str, str]]:
        for chunk in split_text(text, MAX_CHARACTERS):
            for sentence in self._split_sentences(chunk):
                for phonemes in cut_phonemes(self._pronounce(sentence), MAX_PHONEMES):
                    yield sentence, phonemes

    def _pronounce(self, sentence: str) -> str:
        """Phonemes of one sentence, empty if it is punctuation only.

        The front end leaves out what it cannot read without a word; here that is an error.
        """
        tokens = self._g2p.tokenize(self._normalize(sentence))
        for token in tokens:
            # What its tagger takes for punctuation would not be spoken ("+5" in "x (+5)").
            if token.tag in self._silent_tags and any(char.isalnum() for char in token.text):
                token.tag = "CD" if any(char.isdigit() for char in token.text) else "NN"
        tokens = self._g2p.phonemize_tokens(tokens)
        for token in tokens:
            if not token.phonemes and any(char.isalnum() for char in token.text):
                raise BadRequest(f"input has a word that cannot be spoken: {token.text!r}", param="input")
        spaced = (token.phonemes + (" " if token.whitespace else "") for token in tokens)
        phonemes = "".join(spaced).strip()
        return phonemes if any(char.isalpha() for char in phonemes) else ""


def cut_phonemes(phonemes: str, limit: int) -> Iterator[str]:
    """Pieces of at most ``limit``: cut after a clause if one ends in the second half, else between words."""
    rest = phonemes
    while len(rest) > limit:
        space = rest.rfind(" ", 1, limit + 1)
        clause = max(rest.rfind(mark + " ", limit // 2, limit) for mark in _CLAUSE_ENDS) + 1
        cut = clause or (space if space > 0 else limit)
        yield rest[:cut]
        rest = rest[cut:].lstrip()
    if rest:
        yield rest


class SynthesisOptions(DecoderOptions):
    """``threads`` of onnxruntime for each of the ``workers``; more than one is slower and changes the sound."""

    workers: Annotated[int, Field(ge=1, le=64)] = 2
    max_batch: Annotated[int, Field(ge=1, le=4096)] = 1
    threads: Annotated[int, Field(ge=1, le=64)] = 1


class Synthesis(Decoder[Sentence, Spoken]):
    """Speaks one sentence a step. The state is the generator of the request's noise, made from its seed."""

    Options: ClassVar[type[SynthesisOptions]] = SynthesisOptions

    def load(self) -> None:
        hibari = _import_hibari()
        try:
            # The other voices of the package would be downloaded; this one is in it.
            path = hibari.voices.voice_path(VOICE, download_missing=False)
        except FileNotFoundError as error:
            raise WeightsError(f"{error} is missing: reinstall hibari-tts==0.2.1") from error
        if not Path(path).is_file():
            raise WeightsError(f"{path} is missing: reinstall hibari-tts==0.2.1")
        self._model = hibari.tts.Hibari(VOICE, model=path, threads=self.options.threads)
        self._model.from_ids(self._model.ids("həlˈO"), 1.0, np.random.default_rng(0))

    def open(self, first: Sentence) -> np.random.Generator:
        return np.random.default_rng(first.seed & _SEED_MASK)

    def decode(self, batch: Sequence[DecodeJob]) -> Sequence[Sequence[Spoken]]:
        return [[self._speak(item, job.state) for item in job.items] for job in batch]

    def _speak(self, item: Sentence, noise: np.random.Generator) -> Spoken:
        ids = self._model.ids(item.phonemes)
        samples = self._model.from_ids(ids, item.speed, noise)
        if not len(samples) or len(samples) % HOP or not np.isfinite(samples).all():
            raise StageFailed(f"no valid sound for {item.text!r} ({len(samples)} samples)")
        return Spoken(
            position=item.position,
            last=item.last,
            # Peaks of ordinary speech stay below 0.9; this holds the promise of AudioChunk for all the rest.
            samples=np.clip(samples, -1.0, 1.0),
            frames=len(samples) // HOP,
            inputs=len(ids) - 2,
        )


class Progress(msgspec.Struct):
    """How many sentences have come, and whether the last one has."""

    count: int = 0
    complete: bool = False


class Join(Aggregator[Spoken, AudioChunk, Progress]):
    """Lets every sentence leave at once and checks that none is missing, doubled or shortened."""

    def open(self) -> Progress:
        return Progress()

    def add(self, state: Progress, item: Spoken, source: str) -> Iterable[AudioChunk]:
        if state.complete or item.position != state.count:
            raise StageFailed(f"sentence {item.position} came where {state.count} was expected")
        if len(item.samples) != item.frames * HOP:
            raise StageFailed(f"sentence {item.position} has {len(item.samples)} of {item.frames * HOP} samples")
        state.count += 1
        state.complete = item.last
        yield AudioChunk(
            samples=item.samples,
            sample_rate=SAMPLE_RATE,
            usage=Usage(input_tokens=item.inputs, output_tokens=item.frames),
            finish_reason="stop" if item.last else None,
        )

    def result(self, state: Progress) -> Iterable[AudioChunk]:
        if not state.complete:
            raise StageFailed(f"the speech ended after {state.count} sentences without the last one")
        return ()
