"""A voice that beeps: all kinds of stages of a speech recipe in one small plugin that keeps every promise.

text -> sentences (preprocess) -> features (encoder, cached) -> codes (AR, sampled) -> sound (decoder, holds back 8
samples). Every field of the request can be heard.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field
from toy_engine import ToyModel

from omni import (
    AR,
    AudioChunk,
    BadRequest,
    DecodeJob,
    Decoder,
    DecoderOptions,
    Encoder,
    EncoderOptions,
    Message,
    Preprocess,
    Recipe,
    ReferenceAudio,
    Speech,
    SpeechRequest,
    StageContext,
    StageSpec,
    hookimpl,
)
from omni.audio import split_text
from omni.engines.base import Prompt, SamplingParams, StepOutput

RATE = 8000
HELD = 8


class Params(BaseModel):
    model_config = ConfigDict(extra="forbid")

    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] = 0.7
    pitch: Annotated[float, Field(ge=0.5, le=2, allow_inf_nan=False)] = 1.0
    bright: bool = False


class Sentence(Message):
    text: str
    voice: str
    language: str
    instructions: str
    speed: float
    seed: int | None
    references: list[ReferenceAudio]
    temperature: float
    pitch: float
    bright: bool


class Features(Message):
    tokens: np.ndarray
    timbre: float
    sentence: Sentence


class Frame(Message):
    code: int
    timbre: float
    pitch: float
    speed: float


class Split(Preprocess[SpeechRequest, Sentence]):
    def process(self, request: SpeechRequest) -> Iterator[Sentence]:
        strange = [c for c in request.text if c.isalpha() and not c.isascii()]
        if strange:
            raise BadRequest(f"'input': this voice cannot speak {strange[0]!r}", param="input")
        params = Params.model_validate(request.params)
        return (self.sentence(text, request, params) for text in split_text(request.text, 100))

    def sentence(self, text: str, request: SpeechRequest, params: Params) -> Sentence:
        return Sentence(
            text=text,
            voice=request.voice,
            language=request.language or "en",
            instructions=request.instructions or "",
            speed=request.speed,
            seed=request.seed,
            references=request.references,
            **params.model_dump(),
        )


class FeatureOptions(EncoderOptions):
    cache_mb: Annotated[float, Field(ge=0)] = 1.0


class Embed(Encoder[Sentence, Features]):
    Options = FeatureOptions

    def encode(self, batch: Sequence[Sentence]) -> list[Features]:
        return [self.features(sentence) for sentence in batch]

    def features(self, sentence: Sentence) -> Features:
        heard = [sentence.voice, sentence.language, sentence.instructions]
        heard += [f"{zlib(r.audio)}{r.text}" for r in sentence.references]
        tokens = np.frombuffer(sentence.text.encode(), np.uint8).astype(np.int64)
        return Features(tokens=tokens, timbre=zlib("\0".join(heard).encode()) % 97 / 97, sentence=sentence)


def zlib(data: Any) -> int:
    import zlib as module

    return module.crc32(bytes(data))


class Speak(AR[Features, Frame]):
    def model(self) -> Any:
        return ToyModel()

    def prompt(self, item: Features) -> tuple[Prompt, SamplingParams]:
        sentence = item.sentence
        return Prompt(tokens=item.tokens), SamplingParams(
            max_new_tokens=1000, temperature=sentence.temperature, seed=sentence.seed
        )

    def output(self, item: Features, step: StepOutput) -> Iterable[Frame]:
        if step.codes is not None:
            sentence = item.sentence
            timbre = item.timbre + (1.0 if sentence.bright else 0.0)
            yield Frame(code=int(step.codes[0]), timbre=timbre, pitch=sentence.pitch, speed=sentence.speed)


class State:
    def __init__(self) -> None:
        self.phase = 0.0
        self.held = np.zeros(0, np.float32)
        self.scratch = np.zeros(1000, np.float32)


class Sing(Decoder[Frame, AudioChunk]):
    """Keeps the states of its streams, as a vocoder keeps its slots."""

    Options = DecoderOptions

    def __init__(self, options: DecoderOptions, context: StageContext) -> None:
        super().__init__(options, context)
        self.states: list[State] = []

    def open(self, first: Frame) -> State:
        self.states.append(State())
        return self.states[-1]

    def discard(self, state: State) -> None:
        self.states.remove(state)

    def decode(self, batch: Sequence[DecodeJob]) -> list[list[AudioChunk]]:
        return [self.chunks(job) for job in batch]

    def chunks(self, job: DecodeJob) -> list[AudioChunk]:
        state: State = job.state
        parts = [state.held, *(self.sound(state, frame) for frame in job.items)]
        samples = np.concatenate(parts)
        keep = 0 if job.last else min(HELD, len(samples))
        state.held = samples[len(samples) - keep :]
        ready = samples[: len(samples) - keep]
        return [AudioChunk(samples=ready, sample_rate=RATE)] if len(ready) else []

    def sound(self, state: State, frame: Frame) -> np.ndarray:
        """About 10 ms of two partials; the phase runs on from frame to frame."""
        count = round(80 / frame.speed)
        step = 2 * np.pi * (200 + 4 * frame.code) * frame.pitch / RATE
        phase = state.phase + step * np.arange(1, count + 1)
        state.phase = float(phase[-1] % (2 * np.pi))
        return (0.2 * np.sin(phase) + 0.1 * frame.timbre * np.sin(3 * phase)).astype(np.float32)


def recipe(
    name: str = "toy-tts",
    *,
    split: type = Split,
    embed: type = Embed,
    speak: type = Speak,
    sing: type = Sing,
    params: type = Params,
    task: Mapping[str, Any] | None = None,
    **fields: Any,
) -> Recipe:
    """The recipe, with any of its parts replaced."""
    declared: dict[str, Any] = {
        "sample_rate": RATE,
        "voices": ("low", "high"),
        "languages": ("en", "de"),
        "cloning": True,
        "instructions": True,
        "seed": True,
        "native_speed": (0.5, 2.0),
        "max_characters": 4000,
        "params": path(params),
    }
    stages = (
        StageSpec("split", path(split), stream=True),
        StageSpec("embed", path(embed), after="split"),
        StageSpec("speak", path(speak), after="embed", options={"engine": "toy"}),
        StageSpec("sing", path(sing), after="speak", stream=True, options={"first_chunk": 1, "max_chunk": 8}),
    )
    values = {"summary": "Beeps one tone per letter", "license": "Apache-2.0", "stages": stages, **fields}
    return Recipe(name=name, task=Speech(**{**declared, **(task or {})}), **values)


def path(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


@hookimpl
def omni_recipes() -> list[Recipe]:
    return [recipe()]


@hookimpl
def omni_engines() -> Mapping[str, str]:
    return {"toy": "toy_engine:create"}
