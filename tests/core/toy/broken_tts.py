"""Toy voices with one fault each. The comment of a class says what its author got wrong."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import msgspec
import numpy as np
import toy_engine
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from toy_tts import RATE, Embed, Features, Frame, Params, Sentence, Sing, Speak, Split, State

from omni import AudioChunk, BadRequest, DecodeJob, Decoder, EncoderOptions, Message, SpeechRequest, hookimpl
from omni.engines.base import Prompt, SamplingParams

# --- text


class OneSentence(Split):
    """Only the first sentence is spoken."""

    def process(self, request: SpeechRequest) -> Iterator[Sentence]:
        return itertools.islice(super().process(request), 1)


class NoSecondSentence(Split):
    """One sentence in the middle is lost, which costs little of the length."""

    def process(self, request: SpeechRequest) -> Iterator[Sentence]:
        return (sentence for i, sentence in enumerate(super().process(request)) if i != 1)


class FirstCharacters(Split):
    """The text is cut at 500 characters."""

    def process(self, request: SpeechRequest) -> Iterator[Sentence]:
        return super().process(msgspec.structs.replace(request, text=request.text[:500]))


class ShortSentences(Split):
    """A sentence is cut at 150 characters."""

    def sentence(self, text: str, request: SpeechRequest, params: Params) -> Sentence:
        return super().sentence(text[:150], request, params)


class AsciiOnly(Split):
    """What it cannot speak it drops."""

    def process(self, request: SpeechRequest) -> Iterator[Sentence]:
        text = request.text.encode("ascii", "ignore").decode().strip()
        return super().process(msgspec.structs.replace(request, text=text))


class OneVoice(Split):
    def sentence(self, text: str, request: SpeechRequest, params: Params) -> Sentence:
        return super().sentence(text, msgspec.structs.replace(request, voice="low"), params)


class TwoVoicesOfThree(Split):
    def sentence(self, text: str, request: SpeechRequest, params: Params) -> Sentence:
        voice = request.voice.removesuffix("er")
        return super().sentence(text, msgspec.structs.replace(request, voice=voice), params)


class SlowIsFast(Split):
    def sentence(self, text: str, request: SpeechRequest, params: Params) -> Sentence:
        return super().sentence(text, msgspec.structs.replace(request, speed=1 / request.speed), params)


class NoPitch(Split):
    def sentence(self, text: str, request: SpeechRequest, params: Params) -> Sentence:
        return super().sentence(text, request, params.model_copy(update={"pitch": 1.0}))


class FixedSeed(Split):
    def sentence(self, text: str, request: SpeechRequest, params: Params) -> Sentence:
        return super().sentence(text, msgspec.structs.replace(request, seed=1), params)


class HighPitchFails(Split):
    """A legal value does not work."""

    def process(self, request: SpeechRequest) -> Iterator[Sentence]:
        if request.params.get("pitch", 1.0) > 1.9:
            raise BadRequest("pitch too high", param="pitch")
        return super().process(request)


class Stubborn(Split):
    """Works on long after nobody wants the result."""

    def process(self, request: SpeechRequest) -> Iterator[Sentence]:
        for sentence in list(super().process(request)):
            time.sleep(0.6)
            yield sentence


class Crash(Split):
    """A request that must be refused makes it fail."""

    def process(self, request: SpeechRequest) -> Iterator[Sentence]:
        if "§" in request.text:
            raise ValueError("list index out of range")
        return super().process(request)


class Whatever(Split):
    """A request that must be refused is answered."""

    def process(self, request: SpeechRequest) -> Iterator[Sentence]:
        return super().process(msgspec.structs.replace(request, text=request.text.replace("§", "")))


# --- features


class BatchNorm(Embed):
    """The result depends on who shares the batch."""

    def encode(self, batch: Sequence[Sentence]) -> list[Features]:
        features = super().encode(batch)
        for item in features:
            item.timbre += 0.01 * (len(batch) - 1)
        return features


class KeyOfText(Embed):
    def key(self, item: Sentence) -> Message:
        return SpeechRequest(text=item.text)


class KeyOfReferences(Embed):
    """It looks only at the length of the reference audio."""

    def key(self, item: Sentence) -> Message:
        cut = [msgspec.structs.replace(r, audio=r.audio[:100]) for r in item.references]
        return msgspec.structs.replace(item, references=cut)


class KeyWithoutSeed(Embed):
    """The features carry the seed on, so it belongs to the key."""

    def key(self, item: Sentence) -> Message:
        return msgspec.structs.replace(item, seed=0)


class Counter(Embed):
    """Every request moves the voice a little."""

    def load(self) -> None:
        self.count = 0

    def encode(self, batch: Sequence[Sentence]) -> list[Features]:
        self.count += 1
        return [msgspec.structs.replace(f, timbre=f.timbre + 0.001 * self.count) for f in super().encode(batch)]


class Restarted(Embed):
    """The same only until it is started again."""

    def load(self) -> None:
        self.bias = random.SystemRandom().random()

    def encode(self, batch: Sequence[Sentence]) -> list[Features]:
        return [msgspec.structs.replace(f, timbre=f.timbre + self.bias) for f in super().encode(batch)]


class WrongType(Embed):
    """A field holds what its type does not allow; inside one process nobody looks."""

    Options = EncoderOptions

    def features(self, sentence: Sentence) -> Features:
        return msgspec.structs.replace(super().features(sentence), timbre=str(super().features(sentence).timbre))


class SpeakText(Speak):
    """The counterpart of WrongType."""

    def output(self, item: Features, step: Any) -> Any:
        yield from super().output(msgspec.structs.replace(item, timbre=float(item.timbre)), step)


class InPlace(Speak):
    """Writes into an array that came in a message."""

    def prompt(self, item: Features) -> tuple[Prompt, SamplingParams]:
        item.tokens += 1
        prompt = super().prompt(item)
        return replace_tokens(prompt, item.tokens - 1)


def replace_tokens(prompt: tuple[Prompt, SamplingParams], tokens: np.ndarray) -> tuple[Prompt, SamplingParams]:
    return msgspec.structs.replace(prompt[0], tokens=tokens), prompt[1]


class Unseeded(Speak):
    """Draws its own seed."""

    def prompt(self, item: Features) -> tuple[Prompt, SamplingParams]:
        prompt, params = super().prompt(item)
        return prompt, msgspec.structs.replace(params, seed=random.SystemRandom().randrange(2**31))


# --- sound


class NewPhase(Sing):
    """The phase starts again with every chunk."""

    def chunks(self, job: DecodeJob) -> list[AudioChunk]:
        job.state.phase = 0.0
        return super().chunks(job)


class Overlap(Sing):
    """The last chunk is given twice if it is a short one."""

    def chunks(self, job: DecodeJob) -> list[AudioChunk]:
        chunks = super().chunks(job)
        return chunks * 2 if job.last and len(job.items) < 3 else chunks


class AllAtOnce(Sing):
    """Collects everything before it gives anything."""

    def chunks(self, job: DecodeJob) -> list[AudioChunk]:
        job.state.all = [*getattr(job.state, "all", []), *job.items]
        if not job.last:
            return []
        return super().chunks(DecodeJob(job.state, job.state.all, True))


class SharedBuffer(Sing):
    """One array for all that is handed out."""

    def load(self) -> None:
        self.buffer = np.zeros(RATE * 60, np.float32)

    def chunks(self, job: DecodeJob) -> list[AudioChunk]:
        chunks = super().chunks(job)
        for chunk in chunks:
            self.buffer[: len(chunk.samples)] = chunk.samples
            chunk.samples = self.buffer[: len(chunk.samples)]
        return chunks


class SharedState(Sing):
    """The state is the stage's, not the stream's."""

    def load(self) -> None:
        self.phase = 0.0

    def chunks(self, job: DecodeJob) -> list[AudioChunk]:
        job.state.phase = self.phase = self.phase if job.items else 0.0
        chunks = super().chunks(job)
        self.phase = 0.0 if job.last else job.state.phase
        return chunks


class DiscardAll(Sing):
    """One stream's end resets all."""

    def load(self) -> None:
        self.states: list[State] = []

    def open(self, first: Frame) -> State:
        self.states.append(super().open(first))
        return self.states[-1]

    def discard(self, state: State) -> None:
        for other in self.states:
            other.phase = 0.0
            other.held = other.held[:0]
        self.states.remove(state)


class PoisonAll(Decoder[Frame, AudioChunk]):
    """An error of one stream is raised for the whole batch."""

    Options = Sing.Options

    def load(self) -> None:
        self.sing = Sing(self.options, self.context)

    def open(self, first: Frame) -> State:
        return self.sing.open(first)

    def decode(self, batch: Sequence[DecodeJob]) -> list[list[AudioChunk]]:
        time.sleep(0.002)  # so that the streams meet
        if any(item.pitch == 0.75 for job in batch for item in job.items):
            raise BadRequest("no such pitch", param="pitch")
        return self.sing.decode(batch)


class Hoard(Sing):
    """Nothing is ever given back."""

    def load(self) -> None:
        self.states: dict[int, State] = {}

    def open(self, first: Frame) -> State:
        state = super().open(first)
        state.scratch = np.zeros(1000, np.float32)
        self.states[len(self.states)] = state
        return state


class HoardNative(Sing):
    """Memory that only the operating system sees."""

    def load(self) -> None:
        self.blocks: list[Any] = []

    def open(self, first: Frame) -> State:
        import mmap

        block = mmap.mmap(-1, 1 << 21)
        block.write(b"x" * (1 << 21))
        self.blocks.append(block)
        return super().open(first)


class WrongRate(Sing):
    def chunks(self, job: DecodeJob) -> list[AudioChunk]:
        return [msgspec.structs.replace(chunk, sample_rate=16000) for chunk in super().chunks(job)]


class WrongDtype(Sing):
    def chunks(self, job: DecodeJob) -> list[AudioChunk]:
        return [msgspec.structs.replace(c, samples=c.samples.astype(np.float64)) for c in super().chunks(job)]


class Stereo(Sing):
    def chunks(self, job: DecodeJob) -> list[AudioChunk]:
        return [msgspec.structs.replace(c, samples=np.stack([c.samples] * 2, 1)) for c in super().chunks(job)]


class Loud(Sing):
    def chunks(self, job: DecodeJob) -> list[AudioChunk]:
        return [msgspec.structs.replace(c, samples=c.samples * 9) for c in super().chunks(job)]


class NotANumber(Sing):
    def chunks(self, job: DecodeJob) -> list[AudioChunk]:
        return [msgspec.structs.replace(c, samples=c.samples * np.float32("nan")) for c in super().chunks(job)]


class Silent(Sing):
    def chunks(self, job: DecodeJob) -> list[AudioChunk]:
        return [msgspec.structs.replace(c, samples=c.samples * 0) for c in super().chunks(job)]


class Spinner(Sing):
    """A thread that looks for work all the time."""

    def load(self) -> None:
        self.stop = False
        self.thread = threading.Thread(target=self.spin, daemon=True)
        self.thread.start()

    def spin(self) -> None:
        while not self.stop:
            pass

    def close(self) -> None:
        self.stop = True
        self.thread.join()


class LeftThread(Sing):
    """A thread that nobody ends, until the test does."""

    ends: threading.Event = threading.Event()

    def load(self) -> None:
        threading.Thread(target=self.ends.wait, name="left-behind", daemon=True).start()


# --- engines


class KeepsPages(toy_engine.ToyEngine):
    """The pages of what was aborted stay taken."""

    def __init__(self, model: Any, options: Mapping[str, Any]) -> None:
        super().__init__(model, options)
        self.lost = 0

    def abort(self, handle: toy_engine.Row) -> None:
        if handle in self._running:
            self.lost += handle.reserved
        super().abort(handle)

    def _used(self) -> int:
        return super()._used() + self.lost


class DeafEngine(toy_engine.ToyEngine):
    """Generates to the end, aborted or not, and slowly."""

    def abort(self, handle: toy_engine.Row) -> None:
        handle.sink = Nobody()

    def _step(self, rows: list[toy_engine.Row]) -> None:
        time.sleep(0.005)
        super()._step(rows)


class Nobody:
    def room(self) -> int:
        return 1

    def push(self, output: Any) -> None: ...

    def finish(self) -> None: ...

    def fail(self, error: Any) -> None: ...

    def on_room(self, wake: Any) -> None: ...


def keeps_pages(model: Any, options: Mapping[str, Any]) -> KeepsPages:
    return KeepsPages(model, options)


def deaf(model: Any, options: Mapping[str, Any]) -> DeafEngine:
    return DeafEngine(model, options)


def on(engine: str, recipe: Any, **options: Any) -> Any:
    """The recipe on another engine."""
    stages = tuple(
        s.model_copy(update={"options": {"engine": engine, engine: options}}) if s.name == "speak" else s
        for s in recipe.stages
    )
    return recipe.model_copy(update={"stages": stages})


def without(stream: str, recipe: Any) -> Any:
    """The recipe with a stage's ``stream`` taken off."""
    stages = tuple(s.model_copy(update={"stream": False}) if s.name == stream else s for s in recipe.stages)
    return recipe.model_copy(update={"stages": stages})


# --- parameters


class Clamps(Params):
    """Out-of-range values are changed silently."""

    @field_validator("pitch", mode="before")
    @classmethod
    def _clamp(cls, value: Any) -> Any:
        return min(2.0, max(0.5, value)) if isinstance(value, float | int) else value


class Ignores(Params):
    model_config = ConfigDict(extra="ignore")


class Unbounded(Params):
    loudness: float = 1.0


class TakesNaN(Params):
    pitch: Annotated[float, Field(json_schema_extra={"minimum": 0.5, "maximum": 2})] = 1.0

    @field_validator("pitch")
    @classmethod
    def _range(cls, value: float) -> float:
        if value < 0.5 or value > 2:
            raise ValueError("must be between 0.5 and 2")
        return value


class Nameless(BaseModel):
    """The error does not say which field it is about."""

    model_config = ConfigDict(extra="forbid")

    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] = 0.7
    pitch: Annotated[float, Field(json_schema_extra={"minimum": 0.5, "maximum": 2}, allow_inf_nan=False)] = 1.0
    bright: bool = False

    @model_validator(mode="after")
    def _range(self) -> Nameless:
        if not 0.5 <= self.pitch <= 2:
            raise ValueError("something is out of range")
        return self


@hookimpl
def omni_engines() -> Mapping[str, str]:
    return {
        "toy": "toy_engine:create",
        "keeps-pages": "broken_tts:keeps_pages",
        "deaf": "broken_tts:deaf",
    }
