"""Changed content never hits a cache."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import numpy as np

from omni.messages import ReferenceAudio, SpeechRequest, TranscriptionRequest
from omni.recipe import Speech
from omni.testing.checks.base import check
from omni.testing.clips import decoded
from omni.testing.kit import Kit, NotApplicable, fail
from omni.testing.outcome import Outcome
from omni.testing.parameters import accepts, declared_fields, properties, reference, with_value
from omni.testing.samples import Request, wav

_AT_ONCE = 8


@check("with caches on, a changed request is computed anew, and the same one gives the same again")
async def changed_content_misses_the_cache(kit: Kit) -> None:
    off = kit.uncached()
    encoders = [path.partition(".")[0] for path in off]
    if not encoders:
        raise NotApplicable("the recipe has no encoder stage, so core caches nothing")
    await kit.outputs()
    first = kit.requests[0]
    requests = [("nothing", first), *changes(kit, first)]
    pipeline = await kit.pipeline({f"{name}.cache_mb": 64 for name in encoders})
    rounds: list[list[Outcome]] = [[], []]
    for outcomes in rounds:
        for start in range(0, len(requests), _AT_ONCE):
            part = [request for _, request in requests[start : start + _AT_ONCE]]
            outcomes += await kit.outcomes(part, pipeline)
    if not any(pipeline.stats().stages[name].cache_hits_total for name in encoders):
        raise NotApplicable(f"the keys of {encoders} are None or never repeat: nothing is cached")
    for index, (what, request) in enumerate(requests):
        right = await kit.solo(request, off)
        for when, outcomes in zip(("first", "again"), rounds, strict=True):
            if (wrong := kit.difference(outcomes[index], right)) is not None:
                fail(f"with the caches of {encoders} on ({when}), after a change of {what}: {wrong}")


def changes(kit: Kit, request: Request) -> Iterable[tuple[str, Request]]:
    """Requests that differ from ``request`` in one thing each, named."""
    if isinstance(request, SpeechRequest):
        yield from _text_changes(request)
        if isinstance(kit.recipe.task, Speech) and kit.recipe.task.cloning:
            yield from _reference_changes(request)
    else:
        yield from _audio_changes(request)
    for name, values in declared_fields(kit.recipe).items():
        if name == "temperature" and not kit.recipe.task.seed:
            continue  # what is sampled without a seed never repeats
        effect = kit.samples.effects.get(name)
        for value in effect.values if effect is not None else values[:3]:
            if name not in properties(kit.recipe) or accepts(kit.recipe, {**request.params, name: value}) is None:
                yield name, with_value(kit.recipe, request, name, value)


def _text_changes(request: SpeechRequest) -> Iterable[tuple[str, Request]]:
    text = request.text
    places = [i for i, character in enumerate(text) if character.isalpha()]
    for i in {places[0], places[len(places) // 2], places[-1]} if places else ():
        other = "b" if text[i] != "b" else "d"
        yield f"character {i} of the text", msgspec.structs.replace(request, text=text[:i] + other + text[i + 1 :])
    yield "the end of the text", msgspec.structs.replace(request, text=f"{text} {text.split()[0]}")


def _reference_changes(request: SpeechRequest) -> Iterable[tuple[str, Request]]:
    """``request`` has references, or gets one that is made up."""
    request = msgspec.structs.replace(request, references=request.references or reference(140.0), voice="")
    yield "nothing but a reference", request
    for i, given in enumerate(request.references):
        audio = np.array(given.audio)
        audio[-min(1000, len(audio) // 2)] ^= 0x40
        for what, other in (
            ("one byte of the audio", ReferenceAudio(audio=audio, text=given.text)),
            ("the text", ReferenceAudio(audio=given.audio, text=f"{given.text} And so on.")),
        ):
            references = [*request.references[:i], other, *request.references[i + 1 :]]
            yield f"{what} of reference {i}", msgspec.structs.replace(request, references=references)


def _audio_changes(request: TranscriptionRequest) -> Iterable[tuple[str, Request]]:
    samples, rate = decoded(request.audio)
    one = samples.copy()
    one[len(one) // 2] += 0.25 if one[len(one) // 2] < 0.5 else -0.25
    half = len(samples) // 2
    for what, audio in (
        ("one sample of the audio", one),
        ("the order of the audio", np.concatenate([samples[half:], samples[:half]])),
        ("the direction of the audio", samples[::-1]),
        ("the length of the audio", samples[: len(samples) * 3 // 4]),
    ):
        yield what, msgspec.structs.replace(request, audio=wav(audio, rate))


CACHE = (changed_content_misses_the_cache,)
