"""Toy voices with one fault each. The comment of a class says what its author got wrong."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import toy_engine
from together import Together
from toy_tts import Embed, Features, Params, Sentence, Speak, Split

from omni import BadRequest, EncoderOptions, Message, SpeechRequest, hookimpl
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

    Options = Together

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


@hookimpl
def omni_engines() -> Mapping[str, str]:
    return {
        "toy": "toy_engine:create",
        "keeps-pages": "broken_tts:keeps_pages",
        "deaf": "broken_tts:deaf",
    }
