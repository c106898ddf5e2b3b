"""The fields of Fish's requests, and the three kinds of body they come in."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from types import NoneType
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from omni import BadRequest
from omni.endpoints import Call, validated

M = TypeVar("M", bound=BaseModel)

_JSON = (str, int, float, NoneType)
_REFERENCE = re.compile(r"references\[(\d{1,3})\]\.(audio|text)")


class Prosody(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    speed: Annotated[float, Field(ge=0.5, le=2.0, description="Faster or slower at the same pitch.")] = 1.0
    volume: Annotated[float, Field(ge=-20.0, le=20.0, description="Has no effect.")] = 0.0


class TTSRequest(BaseModel):
    """A request to ``/v1/tts``: the fields of Fish's server and of its SDK, and ``top_k``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    text: str
    chunk_length: Annotated[int, Field(ge=100, le=1000, description="Bytes of text that are spoken in one go.")] = 200
    format: Annotated[Literal["wav", "pcm", "mp3", "opus"], Field(description="pcm: 16 bit, mono.")] = "wav"
    sample_rate: Annotated[
        int | None, Field(ge=8000, le=48000, description="Hz; by default the model's own, or the format's next one.")
    ] = None
    references: Annotated[
        list[dict[str, Any]],
        Field(description="Voices to clone: objects of audio (bytes, base64, a data: or an http(s) URL) and text."),
    ] = []
    reference_id: Annotated[str | None, Field(description="Refused unless empty: this server stores no voices.")] = None
    seed: Annotated[
        int | None, Field(ge=-(2**63) + 1, le=2**63 - 1, description="A negative one counts as its absolute value.")
    ] = None
    streaming: Annotated[
        bool | None,
        Field(
            description="true: the sound as it is made; false: a complete file with its length. By default true, but "
            "false for wav, whose header holds the length."
        ),
    ] = None
    max_new_tokens: Annotated[
        int, Field(ge=0, le=30_000, description="Frames at most, per batch of text; 0: as the context allows.")
    ] = 1024
    temperature: Annotated[float, Field(ge=0, le=1, description="0 is greedy.")] = 0.8
    top_p: Annotated[float, Field(gt=0, le=1)] = 0.8
    top_k: Annotated[int, Field(ge=0, le=4096, description="Not a field of Fish's; 0 is off, 1 is greedy.")] = 30
    prosody: Prosody | None = None

    use_memory_cache: Annotated[
        Literal["on", "off"], Field(description="Has no effect: a voice is always encoded once and found by content.")
    ] = "off"
    latency: Annotated[
        Literal["normal", "balanced", "low"], Field(description="Has no effect: sound leaves from the first frame on.")
    ] = "normal"
    normalize: Annotated[bool, Field(description="Has no effect: text is spoken as it is.")] = True
    repetition_penalty: Annotated[float, Field(ge=0.9, le=2.0, description="Has no effect, as in Fish's server.")] = 1.1
    mp3_bitrate: Annotated[Literal[64, 128, 192], Field(description="Has no effect.")] = 128
    opus_bitrate: Annotated[Literal[-1000, 24, 32, 48, 64], Field(description="Has no effect.")] = 32
    min_chunk_length: Annotated[int, Field(ge=0, le=100, description="Has no effect.")] = 50
    condition_on_previous_chunks: Annotated[
        bool, Field(description="Has no effect: every batch has the earlier ones as context.")
    ] = True
    early_stop_threshold: Annotated[float, Field(ge=0, le=1, description="Has no effect.")] = 1.0


WITHOUT_EFFECT = (
    "use_memory_cache",
    "latency",
    "normalize",
    "repetition_penalty",
    "mp3_bitrate",
    "opus_bitrate",
    "min_chunk_length",
    "condition_on_previous_chunks",
    "early_stop_threshold",
)


async def body_of(call: Call, files: Collection[str] = ()) -> tuple[dict[str, Any], bool]:
    """The fields that a client sent, and whether they are a form's text. ``files``: parts of a form that may be one.

    Raises:
        BadRequest: not an object of JSON or msgpack, nor a form, or malformed.
    """
    match call.content_type:
        case "application/msgpack" | "application/x-msgpack" | "application/vnd.msgpack":
            return await call.msgpack(), False
        case "multipart/form-data":
            return _nested(await call.form(), files), True
        case "application/json" | "":
            return await call.json(), False
    raise BadRequest(
        f"a body of type {call.content_type[:60]!r} is not taken; send application/json, application/msgpack or "
        "multipart/form-data",
        param="content-type",
    )


def checked(model: type[M], body: Mapping[str, Any], *, text: bool) -> M:
    """Fields as a model; nulls are fields that were not given.

    Raises:
        BadRequest: it names the field.
    """
    for name, value in body.items():
        # JSON has no such values, msgpack has; as JSON they would pass for text.
        for inner in value.values() if isinstance(value, dict) else [value]:
            if not isinstance(inner, _JSON):
                raise BadRequest(f"{name[:60]!r} must not be {type(inner).__name__}", param=name[:100])
    return validated(model, {name: value for name, value in body.items() if value is not None}, text=text)


def _nested(parts: list[tuple[str, str | bytes]], files: Collection[str]) -> dict[str, Any]:
    """Fields of a form by name; ``references[0].audio``, ``references[0].text`` and ``prosody.speed`` lead inside."""
    fields: dict[str, Any] = {}
    references: dict[int, dict[str, Any]] = {}
    for name, value in parts:
        place, key = fields, name
        if match := _REFERENCE.fullmatch(name):
            place, key = references.setdefault(int(match[1]), {}), match[2]
        elif isinstance(value, bytes) and name not in files:
            known = ", ".join(files) or "references[0].audio and so on"
            raise BadRequest(f"the part {name[:60]!r} is a file; files are: {known}", param=name[:100])
        elif name.startswith("prosody."):
            place, key = fields.setdefault("prosody", {}), name.removeprefix("prosody.")
        if key in place:
            raise BadRequest(f"the field {name[:60]!r} was sent twice", param=name[:100])
        place[key] = value
    if sorted(references) != list(range(len(references))):
        raise BadRequest("references are numbered from 0, without gaps", param="references")
    if references:
        if "references" in fields:
            raise BadRequest("the field 'references' was sent twice", param="references")
        fields["references"] = [references[place] for place in sorted(references)]
    return fields
