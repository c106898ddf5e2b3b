"""POST /v1/tts: a request of Fish's as one of core's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fish_s2pro.api.fields import WITHOUT_EFFECT, TTSRequest, body_of, checked
from omni import BadRequest, OmniError
from omni.endpoints import Call
from omni.errors import ModelNotFound

HOSTED = ("s2-pro", "s1", "s1-mini", "speech-1.5", "speech-1.6", "agent-x0")
"""Models of Fish's own service, which its clients always name in the header ``model``."""
_NAMES = {"input": "text", "speed": "prosody.speed"}
"""Core's names of fields, where Fish's differ and an error may name one."""


class Speaking:
    """The endpoint. ``recipes``: those that are served, each with its aliases."""

    def __init__(self, recipes: Mapping[str, Sequence[str]]) -> None:
        self._first = next(iter(recipes))
        self._names = {alias: name for name, aliases in recipes.items() for alias in (name, *aliases)}

    async def __call__(self, call: Call) -> None:
        body, text = await body_of(call)
        fields, ignored = core_fields(body, text=text)
        fields["model"], other = self.model(call.headers.get("model"))
        ignored += ["model"] if other else []
        body.clear()
        try:
            await call.speak(fields, {"x-omni-ignored": ", ".join(ignored)} if ignored else None)
        except OmniError as error:
            raise _renamed(error) from None

    def model(self, asked: str | None) -> tuple[str, bool]:
        """The recipe to use, and whether another model was asked for.

        Raises:
            ModelNotFound: neither served here nor one of Fish's.
        """
        if asked is None or asked in self._names:
            return self._names.get(asked or "", self._first), False
        if asked in HOSTED:
            return self._first, True
        raise ModelNotFound(
            f"the model {asked[:60]!r} is not served here; served are: {', '.join(self._names)}", param="model"
        )


def core_fields(body: dict[str, Any], *, text: bool = False) -> tuple[dict[str, Any], list[str]]:
    """A request's fields as core's, and the names of those that were given and have no effect.

    Raises:
        BadRequest: it names the field.
    """
    references = body.pop("references", None) or []
    if not isinstance(references, list):
        raise BadRequest("'references' must be a list of objects of 'audio' and 'text'", param="references")
    request = checked(TTSRequest, body, text=text)
    if request.reference_id:
        raise BadRequest(
            "this server stores no voices, so 'reference_id' leads nowhere: send the voice itself in 'references', "
            "with every request; it is encoded once and then found by its content",
            param="reference_id",
            code="unsupported_parameter",
        )
    fields: dict[str, Any] = {
        "input": request.text,
        "response_format": request.format,
        "sample_rate": request.sample_rate or "native",
        "stream": request.format != "wav" if request.streaming is None else request.streaming,
        "seed": None if request.seed is None else abs(request.seed),
        "references": references,
        "chunk_length": request.chunk_length,
        "max_new_tokens": request.max_new_tokens,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "top_k": request.top_k,
    }
    ignored = [name for name in WITHOUT_EFFECT if body.get(name) is not None]
    if request.prosody is not None:
        fields["speed"] = request.prosody.speed
        ignored += ["prosody.volume"] if request.prosody.volume else []
    return fields, ignored


def _renamed(error: OmniError) -> OmniError:
    """The error with Fish's name of the field."""
    for core, fish in _NAMES.items():
        if error.param == core:
            error.param = fish
            error.message = error.message.replace(repr(core), repr(fish))
    return error
