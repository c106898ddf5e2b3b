"""What comes out is what the messages promise, also for those that share a pipeline with errors."""

from __future__ import annotations

import msgspec
import numpy as np

from omni.errors import OmniError, StageFailed
from omni.messages import AudioChunk, TranscriptChunk, TranscriptionRequest
from omni.recipe import Speech
from omni.testing.checks.base import check
from omni.testing.kit import Kit, fail, shown
from omni.testing.outcome import Output
from omni.testing.samples import Request
from omni.testing.tap import Fault, Tap


@check("outputs are what the task declares: rate, channels, finite samples in [-1, 1]; ordered times inside the file")
async def outputs_are_valid(kit: Kit) -> None:
    task = kit.recipe.task
    if isinstance(task, Speech):
        for output in await kit.outputs():
            for item in output.items:
                _valid_audio(item, task)
        return
    await kit.outputs()
    for request in kit.requests:
        assert isinstance(request, TranscriptionRequest)
        timed = msgspec.structs.replace(request, timestamps=list(task.timestamps))
        _valid_transcript(await kit.output(timed), timed)


def _valid_audio(item: object, task: Speech) -> None:
    if not isinstance(item, AudioChunk):
        fail(f"the last stage gave a {type(item).__name__}, not an AudioChunk")
    samples = item.samples
    if not isinstance(samples, np.ndarray) or samples.dtype != np.float32:
        fail(f"samples must be a float32 array, they are {getattr(samples, 'dtype', type(samples).__name__)}")
    channels = 1 if samples.ndim == 1 else samples.shape[-1]
    if samples.ndim not in (1, 2) or channels != task.channels:
        fail(f"a chunk has shape {samples.shape}; the task declares {task.channels} channel(s)")
    if item.sample_rate != task.sample_rate:
        fail(f"a chunk has {item.sample_rate} Hz; the task declares {task.sample_rate} Hz")
    if not np.all(np.isfinite(samples)):
        fail("a chunk holds samples that are not finite")
    if samples.size and np.abs(samples).max() > 1.001:
        fail(f"a chunk reaches {np.abs(samples).max():.3f}; samples are in [-1, 1]")


def _valid_transcript(output: Output, request: TranscriptionRequest) -> None:
    for item in output.items:
        if not isinstance(item, TranscriptChunk):
            fail(f"the last stage gave a {type(item).__name__}, not a TranscriptChunk")
    wanted = set(request.timestamps)
    if "segment" in wanted and not output.segments:
        fail("segment timestamps were asked for and none came")
    if "word" in wanted and not any(segment.words for segment in output.segments):
        fail("word timestamps were asked for and none came")
    end, last = output.duration if output.duration is not None else float("inf"), 0.0
    for segment in output.segments:
        if not 0 <= segment.start <= segment.end <= end + 0.5 or segment.start < last - 0.5:
            fail(f"segment {segment.text!r} runs from {segment.start} to {segment.end} s in a file of {end} s")
        last = segment.start
        for word in segment.words:
            if not segment.start - 0.5 <= word.start <= word.end <= segment.end + 0.5:
                fail(f"word {word.word!r} runs from {word.start} to {word.end} s, outside of its segment")
    if output.segments and _letters("".join(s.text for s in output.segments)) != _letters(output.text):
        fail(f"the segments say {' '.join(s.text for s in output.segments)!r}, the text says {output.text!r}")


def _letters(text: str) -> str:
    return "".join(text.split())


@check("an error ends its own request, typed, and leaves the others as they are when alone")
async def errors_stay_with_their_request(kit: Kit) -> None:
    alone = await kit.outputs()
    pipeline = await kit.pipeline()
    good = [request for _, request in zip(range(4), kit.requests, strict=False)]
    for stage in kit.recipe.stages:
        await _with_neighbours(kit, good, alone, stage.name)
    bad = [*kit.samples.refused, *_garbage(kit)]
    if not bad:
        return
    streams = [pipeline.submit(request) for request in (good[0], *bad, *good[1:])]
    first, *others = [await kit.collect(pipeline, stream) for stream in streams]
    for request, outcome in zip(bad, others, strict=False):
        if not isinstance(outcome, OmniError):
            fail(f"a request that must be refused was answered ({shown(request)}, {_size(request)})")
        if not 400 <= outcome.status < 500:
            fail(
                f"a request that must be refused gave {type(outcome).__name__} ({outcome.status}), not a 4xx error: "
                f"{outcome.message} ({shown(request)}, {_size(request)})"
            )
    for i, outcome in enumerate([first, *others[len(bad) :]]):
        if (what := kit.difference(outcome, alone[i])) is not None:
            fail(f"beside refused requests, sample {i} gave {what}")


async def _with_neighbours(kit: Kit, good: list[Request], alone: list[Output], stage: str) -> None:
    """Let what ``stage`` gives for the second request end in an error."""
    pipeline = await kit.pipeline()
    error = StageFailed("injected by the conformance kit")
    with Tap(pipeline, Fault("victim", stage, error)):
        streams = [pipeline.submit(request, "victim" if i == 1 else None) for i, request in enumerate(good)]
        outcomes = [await kit.collect(pipeline, stream) for stream in streams]
    if not isinstance(outcomes[1], OmniError) or outcomes[1].message != error.message:
        fail(f"an error that stage {stage!r} sent on did not reach its client as it was: {outcomes[1]!r}")
    for i, outcome in enumerate(outcomes):
        if i != 1 and (what := kit.difference(outcome, alone[i])) is not None:
            fail(f"beside a request that failed after stage {stage!r}, sample {i} gave {what}")
    if left := await kit.idle(pipeline, kit.samples.cancel_seconds):
        fail(f"a request failed after stage {stage!r} and left work behind: {left}")


def _garbage(kit: Kit) -> list[Request]:
    """Files that are no audio, for recipes that take some."""
    if kit.recipe.task.kind != "transcription":
        return []
    noise = np.random.default_rng(0).integers(0, 256, 5000).astype(np.uint8)
    (sample, *_) = kit.requests
    assert isinstance(sample, TranscriptionRequest)
    return [
        msgspec.structs.replace(sample, audio=audio)
        for audio in (np.zeros(0, np.uint8), noise, np.ascontiguousarray(sample.audio[:20]))
    ]


def _size(request: Request) -> str:
    return f"{len(request.audio)} bytes" if isinstance(request, TranscriptionRequest) else "speech"


OUTPUTS = (outputs_are_valid, errors_stay_with_their_request)
