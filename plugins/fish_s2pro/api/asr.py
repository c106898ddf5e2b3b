"""POST /v1/asr: what Fish's clients send to have something transcribed, by whichever recipe hears."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from fish_s2pro.api.fields import body_of, checked
from omni import BadRequest, Recipe, Transcription
from omni.endpoints import Call


class ASRRequest(BaseModel):
    """Beside ``audio``, which is a file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    language: Annotated[str | None, Field(max_length=64)] = None
    ignore_timestamps: bool = True


class Hearing:
    """The endpoint; ``recipe`` transcribes."""

    def __init__(self, recipe: Recipe) -> None:
        assert isinstance(recipe.task, Transcription)
        self._recipe = recipe.name
        self._timed = "segment" in recipe.task.timestamps

    async def __call__(self, call: Call) -> None:
        body, text = await body_of(call, files=("audio",))
        audio = body.pop("audio", None)
        if not isinstance(audio, bytes):
            raise BadRequest("'audio' must be the bytes of a file: send msgpack or a form", param="audio")
        request = checked(ASRRequest, body, text=text)
        timed = self._timed and not request.ignore_timestamps
        fields: dict[str, Any] = {"model": self._recipe, "language": request.language}
        if timed:
            fields |= {"response_format": "verbose_json", "timestamp_granularities": ["segment"]}
        transcript = await call.transcribe(fields, audio)
        segments = [{"text": s.text, "start": s.start, "end": s.end} for s in transcript.segments] if timed else []
        await call.reply(
            {"text": transcript.text.strip(), "duration": 1000 * transcript.duration, "segments": segments}
        )
