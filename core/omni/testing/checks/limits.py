"""Every declared limit is enforced, with an error that names the field and the limit; and what leaves the server."""

from __future__ import annotations

import json

import msgspec
import numpy as np

from omni.errors import Busy, OmniError
from omni.messages import SpeechRequest, TranscriptionRequest
from omni.recipe import Speech, Transcription
from omni.testing.checks.base import check
from omni.testing.clips import decoded
from omni.testing.http import Client, refused, serving
from omni.testing.kit import Kit, fail
from omni.testing.parameters import illegal, properties


@check("one request more than limits.max_requests is refused as busy, says when to come back, and harms no other")
async def full_is_busy(kit: Kit) -> None:
    alone = await kit.outputs()
    pipeline = await kit.pipeline({"limits.max_requests": 2})
    for _ in range(2):
        streams = [pipeline.submit(request) for request in kit.requests[:2]]
        try:
            pipeline.submit(kit.requests[0]).cancel()
        except Busy as error:
            if not error.retry_after or error.retry_after <= 0:
                fail(f"a full recipe refuses without saying when to come back (retry_after={error.retry_after})")
        else:
            fail("limits.max_requests is 2 and a third request was taken")
        for i, stream in enumerate(streams):
            if (what := kit.difference(await kit.collect(pipeline, stream), alone[i])) is not None:
                fail(f"after a third request was refused, sample {i} gave {what}")


@check(
    "audio longer than max_seconds is refused, with the limit; audio as long as it is transcribed", task="transcription"
)
async def max_seconds_is_enforced(kit: Kit) -> None:
    clip = max((r for r in kit.requests if isinstance(r, TranscriptionRequest)), key=lambda r: len(r.audio))
    samples, rate = decoded(clip.audio)
    seconds = len(samples) / rate
    limit = max(0.5, (seconds - 0.25) // 0.5 * 0.5)
    outcome = await kit.outcome(clip, await kit.pipeline(task={"max_seconds": limit}))
    if not isinstance(outcome, OmniError):
        fail(
            f"audio of {seconds:.2f} s was transcribed with max_seconds={limit:g}: read context.recipe.task.max_seconds"
        )
    if not 400 <= outcome.status < 500 or f"{limit:g}" not in outcome.message or outcome.param != "file":
        fail(
            f"audio over max_seconds={limit:g} gave {type(outcome).__name__} ({outcome.status}) of the field "
            f"{outcome.param!r}: {outcome.message!r}; it must be a 4xx error of the field 'file' that says the limit"
        )
    expected = await kit.output(clip)
    within = await kit.outcome(clip, await kit.pipeline(task={"max_seconds": seconds}))
    if (what := kit.difference(within, expected)) is not None:
        fail(f"audio of {seconds:.2f} s, with max_seconds={seconds:g}, gave {what}")


@check(
    "over HTTP, text over the limit, unknown voices, languages and fields, undeclared and out-of-range ones are refused"
)
async def requests_over_limits_are_refused(kit: Kit) -> None:
    first = kit.requests[0]
    if isinstance(first, SpeechRequest):
        limit = len(first.text) - 1
        async with serving(await kit.service(task={"max_characters": limit}), kit.timeout) as client:
            refused(await client.send(first), f"text of {limit + 1} characters", "input", str(limit))
    async with serving(await kit.service(), kit.timeout) as client:
        await _speech_fields(kit, client) if isinstance(first, SpeechRequest) else await _audio_fields(kit, client)
        refused(await client.send(first, no_such_field_=1), "a field that does not exist", "no_such_field_")
        refused(await client.send(first, language="klingon"), "a language that does not exist", "language")
        languages = kit.recipe.task.languages
        if languages is not None:
            other = next(code for code in ("en", "de", "ja", "pt", "vo", "kr") if code not in languages)
            refused(await client.send(first, language=other), f"the language {other!r}", "language")
        for name, schema in properties(kit.recipe).items():
            for value, words in illegal(schema):
                refused(await client.send(first, **{name: value}), f"{name}={value!r} ({words})", name)


async def _speech_fields(kit: Kit, client: Client) -> None:
    first, task = kit.requests[0], kit.recipe.task
    assert isinstance(task, Speech)
    refused(await client.send(first, input=""), "an empty text", "input")
    refused(await client.send(first, voice="no-such-voice"), "a voice that does not exist", "voice")
    refused(await client.send(first, speed=100.0), "a speed of 100", "speed")
    for name, declared, value in (
        ("instructions", task.instructions, "Murmur."),
        ("seed", task.seed, 1),
        ("references", task.cloning, [{"audio": "UklGRg==", "text": "So."}]),
    ):
        if not declared:
            # A voice and references exclude each other.
            fields = {name: value} if name != "references" else {name: value, "voice": None}
            refused(await client.send(first, **fields), f"{name}, which the recipe does not declare,", name)


async def _audio_fields(kit: Kit, client: Client) -> None:
    first, task = kit.requests[0], kit.recipe.task
    assert isinstance(task, Transcription)
    for name, declared, value in (
        ("prompt", task.prompt, "Glossary: quinoa"),
        ("seed", task.seed, 1),
        ("temperature", task.temperature, 0.5),
    ):
        if not declared:
            refused(await client.send(first, **{name: value}), f"{name}, which the recipe does not declare,", name)
    garbage = msgspec.structs.replace(first, audio=np.frombuffer(b"this is no audio " * 50, np.uint8))
    refused(await client.send(garbage), "a file that is no audio", "file")


@check("over HTTP, streamed pcm is the same as the whole file, and both are what the pipeline gives", task="speech")
async def streamed_equals_whole_over_http(kit: Kit) -> None:
    assert isinstance(kit.recipe.task, Speech)
    tolerance = round(max(kit.tolerance, kit.recipe.task.stream_tolerance) * 32768) + 1
    expected = [await kit.output(request) for request in kit.requests[:2]]
    async with serving(await kit.service(), kit.timeout) as client:
        for i, request in enumerate(kit.requests[:2]):
            for stream in (True, False):
                answer = await client.send(request, stream=stream)
                if answer.status_code != 200:
                    fail(f"sample {i} with stream={stream} gave {answer.status_code}: {answer.text[:300]}")
                got = np.frombuffer(answer.content[: len(answer.content) // 2 * 2], "<i2").astype(np.int32)
                audio = expected[i].audio
                assert audio is not None
                # pcm is mono, whatever the recipe's channels.
                right = np.clip(np.rint(audio.mean(axis=1) * 32768), -32768, 32767)
                if len(got) != len(right):
                    fail(f"sample {i} with stream={stream} has {len(got)} samples, the pipeline gave {len(right)}")
                if len(got) and np.abs(got - right).max() > tolerance:
                    fail(f"sample {i} with stream={stream} differs from what the pipeline gave")


@check("over HTTP, a streamed transcript says what the whole one says", task="transcription")
async def streamed_text_equals_whole_over_http(kit: Kit) -> None:
    expected = [await kit.output(request) for request in kit.requests[:2]]
    async with serving(await kit.service(), kit.timeout) as client:
        for i, request in enumerate(kit.requests[:2]):
            whole, streamed = await client.send(request), await client.send(request, stream=True)
            for answer in (whole, streamed):
                if answer.status_code != 200:
                    fail(f"sample {i} gave {answer.status_code}: {answer.text[:300]}")
            events = [json.loads(line[5:]) for line in streamed.text.splitlines() if line.startswith("data: {")]
            deltas = "".join(e["delta"] for e in events if e["type"] == "transcript.text.delta")
            done = [e["text"] for e in events if e["type"] == "transcript.text.done"]
            right = expected[i].text.strip()
            said = [text.strip() for text in (whole.json()["text"], deltas, *done)]
            if said != [right] * 3:
                fail(f"sample {i}: {right!r} from the pipeline; whole, in deltas and at the end of the stream: {said}")


LIMITS = (
    full_is_busy,
    max_seconds_is_enforced,
    requests_over_limits_are_refused,
    streamed_equals_whole_over_http,
    streamed_text_equals_whole_over_http,
)
