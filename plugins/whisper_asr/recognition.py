"""Whisper itself: one span of speech to segments of text with times within the span."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from omni import BadRequest, Encoder, EncoderOptions, Message, Segment, WeightsError, Word
from whisper_asr import SAMPLE_RATE
from whisper_asr.audio import Span
from whisper_asr.decoding import bounded, usual_tokens
from whisper_asr.library import faster_whisper

_POSITION = 320  # samples of one position of the encoder's output: 20 ms
_REMEMBERED = 256

# What the model writes into noise ("You", ". . .") has a probability of no speech above 0.85 and a mean log
# probability of -0.6 to -1; speech, even 3 dB below noise, has less than 0.4. Whisper's own limit of -1 lets it pass.
_UNLIKELY = -0.5

ComputeType = Literal["int8", "int8_float16", "int8_float32", "int8_bfloat16", "float16", "bfloat16", "float32"]


class Recognised(Message):
    """What is said in one :class:`Span`; times of ``segments`` in seconds from the start of the span.

    ``positions``: how many 20 ms of speech were read, plus the tokens of the prompt; ``tokens``: how many were
    written. ``language`` is None where nobody speaks and none was asked for. ``cut``: the model would have
    written more."""

    position: int
    last: bool
    start: float
    seconds: float
    language: str | None
    segments: list[Segment]
    positions: int
    tokens: int
    cut: bool = False


_WHISPERS_OWN = {"jv": "jw", "nb": "no"}
"""ISO 639-1 codes of languages that Whisper knows by another: a withdrawn one, and Norwegian without its two forms."""
_ISO = {"jw": "jv"}


class RecognitionOptions(EncoderOptions):
    """``device`` "auto" is CUDA where there is any, ``compute_type`` None is int8 on CPUs and float16 on GPUs.

    ``cpu_threads`` for each of the ``workers``. ``beam_size`` is the default of the request's field; 1 is greedy.
    An unlikely text is dropped where the model sees no speech with at least ``no_speech_threshold``.
    Spans are not batched: a result depends on its span only.
    """

    workers: Annotated[int, Field(ge=1, le=64)] = 2
    max_batch: Annotated[int, Field(ge=1, le=4096)] = 1
    device: Literal["cpu", "cuda", "auto"] = "auto"
    compute_type: ComputeType | None = None
    cpu_threads: Annotated[int, Field(ge=1, le=256)] = 1
    beam_size: Annotated[int, Field(ge=1, le=10)] = 5
    no_speech_threshold: Annotated[float, Field(ge=0, le=1)] = 0.6


class Recognition(Encoder[Span, Recognised]):
    """Any Whisper in CTranslate2's format; what it can do is read from the model itself."""

    Options: ClassVar[type[RecognitionOptions]] = RecognitionOptions

    def load(self) -> None:
        library = faster_whisper()
        folder = self.context.weights
        _check_files(folder)
        self._restore = library.transcribe.restore_speech_timestamps
        self._model = self._open(library, folder)
        has = self._model.hf_tokenizer.token_to_id
        self.languages: tuple[str, ...] = tuple(
            str(code)
            for code in self._model.supported_languages
            if not self._model.model.is_multilingual or has(f"<|{code}|>") is not None
        )
        self._end_of_text = has("<|endoftext|>")
        self._detected: OrderedDict[bytes, str] = OrderedDict()
        self._detecting = threading.Lock()
        self._model.encode(self._model.feature_extractor(np.zeros(SAMPLE_RATE, np.float32))[:, :100])

    def _open(self, library: Any, folder: Any) -> Any:
        options = self.options
        device = options.device
        if device == "auto":
            device = "cuda" if library.transcribe.ctranslate2.get_cuda_device_count() else "cpu"
        try:
            model = bounded(library.WhisperModel)(
                str(folder),
                device=device,
                compute_type=options.compute_type or ("int8" if device == "cpu" else "float16"),
                cpu_threads=options.cpu_threads,
                num_workers=options.workers,
                local_files_only=True,
            )
        except (RuntimeError, ValueError, OSError) as error:
            raise WeightsError(f"{folder} is no Whisper model in CTranslate2's format: {error}") from error
        bands = len(model.feature_extractor.mel_filters)
        if bands != model.model.n_mels:
            raise WeightsError(
                f"{folder}: the model wants {model.model.n_mels} mel bands, preprocessor_config.json says {bands}"
            )
        return model

    def encode(self, batch: Sequence[Span]) -> Sequence[Recognised]:
        return [self._recognise(span) for span in batch]

    def _recognise(self, span: Span) -> Recognised:
        code = None if span.language is None else _WHISPERS_OWN.get(span.language, span.language)
        if code is not None and code not in self.languages:
            known = ", ".join(self.languages)
            raise BadRequest(f"language {span.language!r} is not one of this model's: {known}", param="language")
        prompt_tokens = self._check_prompt(span.prompt)
        if not len(span.samples):
            return self._result(span, span.language, [], 0, 0)
        language = code or self._detect(span.probe if len(span.probe) else span.samples)
        found, _ = self._model.transcribe(
            span.samples,
            language=language,
            beam_size=span.beam_size or self.options.beam_size,
            temperature=span.temperature,
            initial_prompt=span.prompt if prompt_tokens else None,
            no_speech_threshold=self.options.no_speech_threshold,
            log_prob_threshold=_UNLIKELY,
            max_new_tokens=usual_tokens(len(span.samples) / SAMPLE_RATE),
            condition_on_previous_text=False,
            word_timestamps=span.words,
        )
        kept = [{"start": start, "end": end} for start, end in span.kept]
        heard = list(self._restore(found, kept, SAMPLE_RATE))
        segments = [_segment(segment) for segment in heard]
        read = -(-len(span.samples) // _POSITION) + prompt_tokens
        told = span.language or _ISO.get(language, language)
        return self._result(span, told, segments, read, sum(len(s.tokens) for s in segments), cut=self._is_cut(heard))

    def _is_cut(self, heard: Sequence[Any]) -> bool:
        """Whether the model's limit, half of its context, ended the text of a window. Where a window has times inside,
        the library takes what is complete and hears the rest again; so only one without them comes to the limit."""
        windows: Counter[int] = Counter()
        for segment in heard:
            windows[segment.seek] += len(segment.tokens)
        return any(count >= self._model.max_length // 2 for count in windows.values())

    @staticmethod
    def _result(
        span: Span, language: str | None, segments: list[Segment], read: int, tokens: int, *, cut: bool = False
    ) -> Recognised:
        return Recognised(
            position=span.position,
            last=span.last,
            start=span.start,
            seconds=span.seconds,
            language=language,
            segments=segments,
            positions=read,
            tokens=tokens,
            cut=cut,
        )

    def _check_prompt(self, prompt: str | None) -> int:
        """Number of tokens of the prompt. Whisper itself would cut it, and read ``<|...|>`` as commands."""
        if prompt is None or not prompt.strip():
            return 0
        ids = self._model.hf_tokenizer.encode(" " + prompt.strip(), add_special_tokens=False).ids
        limit = self._model.max_length // 2 - 1
        if len(ids) > limit:
            raise BadRequest(f"prompt has {len(ids)} tokens; this model takes up to {limit}", param="prompt")
        if any(token >= self._end_of_text for token in ids):
            raise BadRequest("prompt holds a control token of the model (<|...|>)", param="prompt")
        return len(ids)

    def _detect(self, speech: np.ndarray) -> str:
        """The language of ``speech``, remembered: all spans of a file ask about the same samples."""
        if len(self.languages) == 1:
            return self.languages[0]
        key = blake2b(speech.tobytes(), digest_size=16).digest()
        with self._detecting:
            if key not in self._detected:
                self._detected[key] = str(self._model.detect_language(speech)[0])
            self._detected.move_to_end(key)
            while len(self._detected) > _REMEMBERED:
                self._detected.popitem(last=False)
            return self._detected[key]


def _check_files(folder: Path | None) -> None:
    if folder is None:
        raise WeightsError("Whisper needs weights: name a folder with --weights")
    # Without its tokenizer the library would ask the Hub for one.
    wanted = ["config.json", "model.bin", "tokenizer.json"]
    missing = [name for name in wanted if not (folder / name).is_file()]
    if not any(folder.glob("vocabulary.*")):
        missing.append("vocabulary.json or vocabulary.txt")
    if missing:
        raise WeightsError(f"{folder} is no Whisper model in CTranslate2's format: it lacks {', '.join(missing)}")


def _segment(found: Any) -> Segment:
    """The library's segment in ours; it counts in numpy's numbers, which do not travel."""
    return Segment(
        start=float(found.start),
        end=float(found.end),
        text=found.text,
        words=[Word(w.word, float(w.start), float(w.end), float(w.probability)) for w in found.words or ()],
        tokens=[int(token) for token in found.tokens],
        temperature=float(found.temperature or 0.0),
        avg_logprob=float(found.avg_logprob),
        compression_ratio=float(found.compression_ratio),
        no_speech_prob=float(found.no_speech_prob),
    )
