"""From the JSON of a speech request to what the pipeline takes and how its sound is to leave."""

from __future__ import annotations

import asyncio
import base64
import binascii
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omni.audio import FORMATS, encoder_rate, has_speakable, normalize_text
from omni.audio.stretch import MAX_SPEED, MIN_SPEED
from omni.errors import BadRequest
from omni.messages import ReferenceAudio, SpeechRequest
from omni.pipeline import Pipeline
from omni.plugins import params_model
from omni.recipe import Speech
from omni.server.body import Share
from omni.server.errors import shown
from omni.server.fetch import fetch
from omni.server.fields import Field, Parameters, unknown_field
from omni.server.languages import code_of
from omni.server.openai_names import VOICES, spellings, voices_of
from omni.server.settings import MIB, ServerSettings

MIN_RATE, MAX_RATE = 8000, 48000
_LONG = 8192
"""Characters that may be cleaned on the event loop."""
_LONG_AUDIO = MIB
"""Characters of base64 that may be decoded on the event loop."""
PCM_RATE = 24000
"""What clients of OpenAI take raw samples for."""

FIELDS = {
    field.name: field
    for field in (
        Field("model", ("string",), "A served recipe or an alias of one; the first speech recipe by default."),
        Field("input", ("string",), "The text to speak."),
        Field("voice", ("string", "object"), "A voice's id or name, or {'id': …}; the recipe's first by default."),
        Field("response_format", ("string",), "How the sound is encoded.", choices=FORMATS, default="mp3"),
        Field(
            "speed",
            ("number",),
            "How fast it is spoken, at the same pitch.",
            minimum=MIN_SPEED,
            maximum=MAX_SPEED,
            default=1.0,
        ),
        Field("instructions", ("string",), "How to speak, in words, where the recipe takes them.", max_length=10_000),
        Field("stream", ("boolean",), "false: one complete file with Content-Length.", default=True),
        Field(
            "stream_format",
            ("string",),
            "audio: the bytes of the file as they are made; sse: events speech.audio.delta and speech.audio.done.",
            choices=("audio", "sse"),
            default="audio",
        ),
        Field(
            "sample_rate",
            ("integer",),
            "Hz, or 'native' for the model's own. Default: 24000 for pcm, native for the other formats; where a "
            "format does not have the native rate, its next one above.",
            minimum=MIN_RATE,
            maximum=MAX_RATE,
            choices=("native",),
        ),
        Field("language", ("string",), "ISO 639-1 code or English name.", max_length=64),
        Field("seed", ("integer",), "Repeats a result, where the recipe takes it.", minimum=0, maximum=2**63 - 1),
        Field(
            "references",
            ("array",),
            "Voices to clone, where the recipe can: objects of audio (base64, a data: URL or an http(s) URL) and text.",
        ),
    )
}


@dataclass(frozen=True)
class SpeechPlan:
    """A checked request: what the pipeline gets, and how its sound leaves. ``sample_rate`` is the encoder's (Hz),
    ``channels`` what the client gets; ``stretch`` is 1 when the model speaks at the wanted speed itself."""

    request: SpeechRequest
    format: str
    sample_rate: int
    channels: int
    stretch: float
    whole: bool
    sse: bool


class SpeechFields:
    """Checks requests for one recipe; made once."""

    def __init__(self, pipeline: Pipeline, settings: ServerSettings) -> None:
        recipe = pipeline.recipe
        assert isinstance(recipe.task, Speech)
        self._task = recipe.task
        self._pipeline = pipeline
        self._settings = settings
        self._voices = voices_of(recipe.task, settings)
        self._spelling = spellings(self._voices)
        self._default_voice = recipe.task.voices[0].id if recipe.task.voices else ""
        self.parameters = Parameters(recipe.name, params_model(recipe), FIELDS)

    async def plan(self, body: dict[str, Any], share: Share) -> SpeechPlan:
        """References are fetched here, and held by ``share``.

        Raises:
            BadRequest: it names the field.
            Busy: the pipeline, or the memory for requests, has no room for references.
        """
        values, own = self._split(body)
        task = self._task
        fmt = values.get("response_format", "mp3")
        sse = values.get("stream_format", "audio") == "sse"
        stream = values.get("stream", True)
        if sse and not stream:
            raise BadRequest("'stream': false gives one file and excludes 'stream_format': 'sse'", param="stream")
        if values.get("instructions") and not task.instructions:
            raise BadRequest("this model takes no 'instructions'", param="instructions", code="unsupported_parameter")
        if "seed" in values and not task.seed:
            raise BadRequest("this model takes no 'seed'", param="seed", code="unsupported_parameter")
        speed = values.get("speed", 1.0)
        native = task.native_speed is not None and task.native_speed[0] <= speed <= task.native_speed[1]
        language = values.get("language")
        text = await self._text(values)
        params = self.parameters.validate(own)
        sample_rate = _rate(fmt, values.get("sample_rate"), task)
        voice = self._voice(values)
        return SpeechPlan(
            request=SpeechRequest(
                text=text,
                voice=voice,
                language=code_of(language, task.languages) if language else None,
                instructions=values.get("instructions") or None,
                speed=speed if native else 1.0,
                seed=values.get("seed"),
                references=await self._references(values.get("references") or [], share),
                params=params,
            ),
            format=fmt,
            sample_rate=sample_rate,
            channels=1 if fmt == "pcm" else task.channels,
            stretch=1.0 if native else speed,
            whole=not stream,
            sse=sse,
        )

    def _split(self, body: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Core's fields, checked, and the recipe's own. A null is a field that was not given."""
        values: dict[str, Any] = {}
        own: dict[str, Any] = {}
        for name, value in body.items():
            field = FIELDS.get(name)
            if field is None and name not in self.parameters.names:
                raise unknown_field(name, (*FIELDS, *self.parameters.names))
            if value is None:
                continue
            if field is None:
                own[name] = value
            else:
                values[name] = field.check(value)
        return values, own

    async def _text(self, values: dict[str, Any]) -> str:
        text: str | None = values.get("input")
        if text is None:
            raise BadRequest("'input' is missing: the text to speak", param="input", code="missing_required_parameter")
        limit = self._task.max_characters
        if len(text) > limit:
            raise BadRequest(
                f"'input' has {len(text)} characters; this model speaks at most {limit} at once",
                param="input",
                code="string_above_max_length",
            )
        text = normalize_text(text) if len(text) < _LONG else await asyncio.to_thread(normalize_text, text)
        if not text.strip():
            raise BadRequest("'input' holds no visible text", param="input", code="empty_input")
        if not has_speakable(text):
            raise BadRequest(
                "'input' holds nothing that can be spoken: no letter and no digit", param="input", code="empty_input"
            )
        return text

    def _voice(self, values: dict[str, Any]) -> str:
        voice = values.get("voice")
        if isinstance(voice, dict):
            if set(voice) != {"id"} or not isinstance(voice["id"], str):
                raise BadRequest("'voice' must be a name or {'id': name}", param="voice")
            voice = voice["id"]
        cloned = bool(values.get("references"))
        if not voice:
            return "" if cloned else self._default_voice
        voice = self._spelling.get(voice.casefold(), voice)
        if voice not in self._voices:
            own = ", ".join(v.id for v in self._task.voices) or "none of its own"
            also = "; OpenAI's names stand for its default" if self._settings.aliases else ""
            raise BadRequest(
                f"this model has no voice {shown(voice)}; it has: {own}{also}", param="voice", code="voice_not_found"
            )
        if cloned:
            # OpenAI's clients cannot leave the voice out; only the model's own contradicts a reference.
            if voice not in VOICES or voice in {v.id for v in self._task.voices}:
                raise BadRequest("'voice' and 'references' exclude each other", param="voice")
            return ""
        return self._voices[voice]

    async def _references(self, entries: list[Any], share: Share) -> list[ReferenceAudio]:
        if not entries:
            return []
        if not self._task.cloning:
            raise BadRequest("this model clones no voices", param="references", code="unsupported_parameter")
        limit = self._settings.max_references
        if len(entries) > limit:
            raise BadRequest(
                f"'references' may have at most {limit} entries, it has {len(entries)}", param="references"
            )
        self._pipeline.check_room()
        references = []
        for place, entry in enumerate(entries):
            param = f"references[{place}]"
            if not isinstance(entry, dict) or not set(entry) <= {"audio", "text"}:
                raise BadRequest(f"'{param}' must be an object of 'audio' and 'text'", param=param)
            text = entry.get("text") or ""
            if not isinstance(text, str) or len(text) > self._task.max_characters:
                raise BadRequest(
                    f"'{param}.text' must be a string of at most {self._task.max_characters} characters",
                    param=f"{param}.text",
                )
            audio = await self._audio(entry.get("audio"), f"{param}.audio", share)
            references.append(ReferenceAudio(audio=audio, text=normalize_text(text, param=f"{param}.text")))
        return references

    async def _audio(self, value: Any, param: str, share: Share) -> NDArray[np.uint8]:
        limit = int(self._settings.max_reference_mb * MIB)
        if isinstance(value, bytes):  # JSON has none; a plugin's endpoint may
            share.take(len(value))
            return _bounded(value, limit, param)
        if not isinstance(value, str) or not value:
            raise BadRequest(f"'{param}' must be base64, a data: URL or an http(s) URL", param=param)
        if value[:8].lower().startswith(("http://", "https://")):
            return await fetch(value, self._settings, param, share)
        if value.startswith("data:"):
            head, _, value = value.partition(",")
            if not head.endswith(";base64"):
                raise BadRequest(f"'{param}': a data: URL must be base64", param=param)
        return await decode_base64(value, limit, param, share)


async def decode_base64(text: str, limit: int, param: str, share: Share) -> NDArray[np.uint8]:
    """The bytes of strict base64, at most ``limit`` of them; ``share`` holds them.

    Raises:
        BadRequest: not base64, nothing, or too much.
        Busy, TooLarge: there is no room for them.
    """
    if len(text) > 4 * (limit // 3 + 1):
        raise BadRequest(f"'{param}' is larger than {round(limit / MIB, 2):g} MiB", param=param)
    share.take(3 * len(text) // 4)
    decode = partial(base64.b64decode, text, validate=True)
    try:
        data = decode() if len(text) < _LONG_AUDIO else await asyncio.to_thread(decode)
    except (binascii.Error, ValueError):
        raise BadRequest(f"'{param}' is not valid base64", param=param) from None
    return _bounded(data, limit, param)


def _bounded(data: bytes, limit: int, param: str) -> NDArray[np.uint8]:
    if not data:
        raise BadRequest(f"'{param}' is empty", param=param)
    if len(data) > limit:
        raise BadRequest(f"'{param}' is larger than {round(limit / MIB, 2):g} MiB", param=param)
    return np.frombuffer(data, np.uint8)


def _rate(fmt: str, asked: int | str | None, task: Speech) -> int:
    """The encoder's rate. Only a rate that was asked for is refused when the format does not have it."""
    if isinstance(asked, int):
        possible = encoder_rate(fmt, asked)
        if possible != asked:
            raise BadRequest(
                f"{fmt} has no sample rate of {asked} Hz; the nearest that fits is {possible}", param="sample_rate"
            )
        return asked
    return encoder_rate(fmt, PCM_RATE if fmt == "pcm" and asked is None else task.sample_rate)
