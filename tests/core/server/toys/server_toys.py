"""Small recipes that answer at once and say what they were given: sounds are tones, transcripts are reports."""

from __future__ import annotations

import json
import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from typing import Annotated

import numpy as np
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.websockets import WebSocket

from omni import (
    Aggregator,
    AudioChunk,
    BadRequest,
    DecodeJob,
    Decoder,
    Limits,
    Message,
    Preprocess,
    Recipe,
    Segment,
    Speech,
    SpeechRequest,
    StageSpec,
    TranscriptChunk,
    Transcription,
    TranscriptionRequest,
    Usage,
    Voice,
    Word,
    hookimpl,
)

WORD_SECONDS = 0.1
GATE = threading.Event()
"""What the hearing of ``BLOCKED`` waits for."""


class ToneParams(BaseModel):
    pitch: Annotated[float, Field(ge=0.5, le=2)] = 1.0
    overtones: Annotated[int, Field(ge=0, le=4)] = 0
    shout: bool = False


class ClashingParams(BaseModel):
    speed: float = 1.0


class AliasParams(BaseModel):
    model_config = ConfigDict(extra="forbid")

    top_k: Annotated[int, Field(alias="topK", ge=1)] = 5
    bias: Annotated[float, Field(alias="biasOf")] = 0.0


class ReadOtherwiseParams(BaseModel):
    top_k: Annotated[int, Field(validation_alias="topK")] = 5


class HearParams(BaseModel):
    beam: Annotated[int, Field(ge=1, le=10)] = 1
    vad_filter: bool = True
    hotwords: list[str] = []


class Spoken(Message):
    """One word and all that has an influence on its sound."""

    word: str
    request: SpeechRequest


class Words(Preprocess[SpeechRequest, Spoken]):
    def process(self, item: SpeechRequest) -> Iterator[Spoken]:
        if item.text == "REFUSE":
            raise BadRequest("this text is refused", param="input")
        if item.text == "NOTHING":
            return
        if item.text in ("FOREVER", "FLOOD"):
            while True:
                time.sleep(0.005 if item.text == "FOREVER" else 0)  # the work of a word
                yield Spoken(word="on", request=item)
        for word in item.text.split():
            yield Spoken(word=word, request=item)


class AliasWords(Words):
    """Reads its parameters as a plugin does."""

    def process(self, item: SpeechRequest) -> Iterator[Spoken]:
        top_k = AliasParams.model_validate(item.params).top_k
        yield from (Spoken(word=item.text, request=item) for _ in range(top_k))


class Tone(Decoder[Spoken, AudioChunk]):
    def decode(self, batch: Sequence[DecodeJob]) -> Sequence[Sequence[AudioChunk]]:
        return [[self._speak(item) for item in job.items] for job in batch]

    def _speak(self, item: Spoken) -> AudioChunk:
        task = self.context.recipe.task
        if item.word == "BOOM":
            raise RuntimeError("a secret from inside")
        request = item.request
        said = json.dumps([request.voice, request.language, request.instructions, request.seed, request.params])
        heard = "".join(f"{zlib.crc32(r.audio.tobytes())}{r.text}" for r in request.references)
        frequency = 200 + zlib.crc32((said + heard + item.word).encode()) % 400
        t = np.arange(int(WORD_SECONDS / request.speed * task.sample_rate), dtype=np.float32) / task.sample_rate
        samples = (0.3 * np.sin(2 * np.pi * frequency * t)).astype(np.float32)
        if item.word == "NAN":
            samples[5] = np.nan
        if task.channels == 2:
            samples = np.stack([samples, -0.5 * samples], axis=1)
        return AudioChunk(
            samples=samples,
            sample_rate=task.sample_rate,
            usage=Usage(input_tokens=2, output_tokens=5),
            finish_reason="stop",
        )


class Heard(Message):
    report: str
    seconds: float


class Hear(Preprocess[TranscriptionRequest, Heard]):
    def process(self, item: TranscriptionRequest) -> Heard:
        head = bytes(item.audio[:7])
        if head == b"CORRUPT":
            raise BadRequest("the audio is damaged", param="file")
        if head == b"BLOCKED":
            GATE.wait(20)
        report = {
            "bytes": len(item.audio),
            "crc": zlib.crc32(item.audio),
            "language": item.language,
            "prompt": item.prompt,
            "temperature": item.temperature,
            "seed": item.seed,
            "timestamps": item.timestamps,
            "params": item.params,
        }
        return Heard(report="" if head == b"SILENCE" else json.dumps(report), seconds=4.5)


class Report(Decoder[Heard, TranscriptChunk]):
    """Every entry of the report is a segment of half a second."""

    def decode(self, batch: Sequence[DecodeJob]) -> Sequence[Sequence[TranscriptChunk]]:
        return [[chunk for item in job.items for chunk in self._chunks(item.report)] for job in batch]

    def _chunks(self, report: str) -> Iterator[TranscriptChunk]:
        pieces = report.split(", ") if report else []
        for number, piece in enumerate(pieces):
            text = piece if number == 0 else ", " + piece
            start = 0.5 * number
            words = [Word(" " + w, start, start + 0.25) for w in piece.split(" ")]
            yield TranscriptChunk(
                text=text, segments=[Segment(start=start, end=start + 0.5, text=text, words=words)], language="en"
            )


class Counted(Aggregator[TranscriptChunk, TranscriptChunk, None]):
    def open(self) -> None:
        return None

    def add(self, state: None, item: TranscriptChunk, source: str) -> list[TranscriptChunk]:
        return [item]

    def result(self, state: None) -> list[TranscriptChunk]:
        return [TranscriptChunk(duration=4.5)]


TONE = Recipe(
    name="tone",
    summary="Tones",
    license="Apache-2.0",
    task=Speech(
        sample_rate=24000,
        voices=(Voice("low", name="Low voice"), Voice("high")),
        native_speed=(0.5, 2.0),
        max_characters=2000,
        params="server_toys:ToneParams",
    ),
    stages=(
        StageSpec("words", "server_toys:Words"),
        StageSpec("sound", "server_toys:Tone", after="words", stream=True),
    ),
    limits=Limits(max_requests=64),
)
STEREO = Recipe(
    name="stereo",
    summary="Tones, left and right",
    license="Apache-2.0",
    task=Speech(
        sample_rate=44100,
        channels=2,
        languages=("en", "de"),
        cloning=True,
        instructions=True,
        seed=True,
    ),
    stages=TONE.stages,
)
HEAR = Recipe(
    name="hear",
    summary="Reports",
    license="Apache-2.0",
    task=Transcription(
        languages=("en", "de", "zh"),
        timestamps=("segment", "word"),
        prompt=True,
        temperature=True,
        seed=True,
        params="server_toys:HearParams",
    ),
    stages=(
        StageSpec("hear", "server_toys:Hear"),
        StageSpec("report", "server_toys:Report", after="hear", stream=True),
        StageSpec("counted", "server_toys:Counted", after="report"),
    ),
)
PLAIN = Recipe(
    name="plain",
    summary="Reports without times",
    license="Apache-2.0",
    task=Transcription(),
    stages=HEAR.stages,
)
RECIPES = (TONE, STEREO, HEAR, PLAIN)


class Plugin:
    @hookimpl
    def omni_recipes(self) -> list[Recipe]:
        return list(RECIPES)

    @hookimpl
    def omni_routes(self, router, service) -> None:
        @router.get("/v1/toy/{number}")
        async def toy(number: int) -> dict[str, int]:
            if number == 7:
                raise ZeroDivisionError("a secret from a plugin")
            if number == 8:
                raise BadRequest("not eight", param="number")
            return {"number": number, "served": len(service.pipelines)}

        @router.websocket("/v1/toy/live")
        async def live(socket: WebSocket) -> None:
            await socket.accept()
            await socket.send_text(str(len(await socket.receive_bytes())))
            await socket.close()

        @router.post("/v1/toy/size")
        async def size(request: Request) -> dict[str, int]:
            return {"size": len(await request.body())}
