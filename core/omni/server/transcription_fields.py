"""From the fields of a transcription request to what the pipeline takes and how its text is to leave."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omni.errors import BadRequest
from omni.messages import TranscriptionRequest
from omni.pipeline import Pipeline
from omni.plugins import params_model
from omni.recipe import Transcription
from omni.server.errors import shown
from omni.server.fields import Field, Parameters, unknown_field
from omni.server.languages import code_of
from omni.server.transcript_formats import FORMATS, Format

FIELDS = {
    field.name: field
    for field in (
        Field("model", ("string",), "A served recipe or an alias of one; the first transcription recipe by default."),
        Field("language", ("string",), "Of the speech: ISO 639-1 code, English name, or auto.", max_length=64),
        Field("languages", ("array",), "As language, of which it may name one.", max_length=16, repeated=True),
        Field("prompt", ("string",), "Text before the speech, where the recipe takes it."),
        Field("keywords", ("array",), "Words to expect, where the recipe takes them.", max_length=1000, repeated=True),
        Field("response_format", ("string",), "How the transcript is written.", choices=FORMATS, default="json"),
        Field("temperature", ("number",), "Of sampling; 0 is greedy.", minimum=0, maximum=1, default=0),
        Field(
            "timestamp_granularities",
            ("array",),
            "What verbose_json lists, where the recipe has it.",
            choices=("segment", "word"),
            max_length=2,
            repeated=True,
        ),
        Field("stream", ("boolean",), "true: events transcript.text.delta and transcript.text.done.", default=False),
        Field("include", ("array",), "Must be empty: no recipe gives logprobs.", max_length=8, repeated=True),
        Field("chunking_strategy", ("string",), "The server always cuts long audio itself.", choices=("auto",)),
        Field("vad_filter", ("boolean",), "false, unless the recipe has a parameter of this name.", default=False),
        Field("seed", ("integer",), "Repeats a result, where the recipe takes it.", minimum=0, maximum=2**63 - 1),
    )
}
YIELDING = ("keywords", "vad_filter")
"""Fields that a recipe's own parameter of the same name takes over."""


@dataclass(frozen=True)
class TranscriptionPlan:
    """A checked request: what the pipeline gets, and how its text leaves."""

    request: TranscriptionRequest
    format: Format
    granularities: tuple[str, ...]
    stream: bool


class TranscriptionFields:
    """Checks requests for one recipe; made once."""

    def __init__(self, pipeline: Pipeline) -> None:
        recipe = pipeline.recipe
        assert isinstance(recipe.task, Transcription)
        self._task = recipe.task
        self._hint = recipe.hint()
        self.parameters = Parameters(
            recipe.name, params_model(recipe), [name for name in (*FIELDS, "file") if name not in YIELDING]
        )

    def plan(self, values: dict[str, Any], audio: NDArray[np.uint8], *, text: bool) -> TranscriptionPlan:
        """``values`` are a form's (``text``: strings, lists for repeated fields) or JSON's.

        Raises:
            BadRequest: it names the field.
        """
        core, own = self._split(values, text)
        task = self._task
        kind: Format = core.get("response_format", "json")
        stream = core.get("stream", False)
        if stream and kind not in ("json", "text"):
            raise BadRequest(
                f"'stream' gives events and goes with response_format json or text, not {kind}", param="stream"
            )
        self._refuse_unsupported(core)
        language = self._language(core)
        return TranscriptionPlan(
            request=TranscriptionRequest(
                audio=audio,
                language=language,
                prompt=core.get("prompt") or None,
                temperature=core.get("temperature") if task.temperature else None,
                seed=core.get("seed"),
                timestamps=list(granularities := self._granularities(core, kind, language)),
                params=self.parameters.validate(own, text=text),
            ),
            format=kind,
            granularities=granularities,
            stream=stream,
        )

    def _split(self, values: dict[str, Any], text: bool) -> tuple[dict[str, Any], dict[str, Any]]:
        """Core's fields, checked, and the recipe's own. A null is a field that was not given."""
        core: dict[str, Any] = {}
        own: dict[str, Any] = {}
        for name, value in values.items():
            if value is None:
                continue
            if name in self.parameters.names:
                own[name] = value
                continue
            field = FIELDS.get(name)
            if field is None:
                raise unknown_field(name, ("file", *FIELDS, *self.parameters.names))
            core[name] = field.check(field.parse(value) if text and isinstance(value, str) else value)
        return core, own

    def _refuse_unsupported(self, core: dict[str, Any]) -> None:
        task = self._task
        refusals = (
            ("prompt", bool(core.get("prompt")) and not task.prompt, "this model takes no 'prompt'"),
            ("seed", "seed" in core and not task.seed, "this model takes no 'seed'"),
            (
                "temperature",
                bool(core.get("temperature")) and not task.temperature,
                "this model takes no 'temperature' but 0",
            ),
            ("include", bool(core.get("include")), f"'include' of {shown(core.get('include'))} is not supported"),
            ("keywords", bool(core.get("keywords")), "this model takes no 'keywords'"),
            ("vad_filter", bool(core.get("vad_filter")), "this model has no 'vad_filter' to switch on"),
        )
        for param, refused, text in refusals:
            if refused:
                raise BadRequest(text, param=param, code="unsupported_parameter")

    def _language(self, core: dict[str, Any]) -> str | None:
        named: list[Any] = list(core.get("languages") or [])
        if core.get("language"):
            named.insert(0, core["language"])
        codes: list[str] = []
        for language in named:
            if not isinstance(language, str):
                raise BadRequest(f"'languages' must hold strings, not {shown(language)}", param="languages")
            if language.strip().casefold() == "auto":
                continue
            code = code_of(language, self._task.languages, "language" if core.get("language") else "languages")
            if code not in codes:
                codes.append(code)
        if len(codes) > 1:
            raise BadRequest(f"name one language, not {', '.join(codes)}", param="languages")
        return codes[0] if codes else None

    def _granularities(self, core: dict[str, Any], kind: Format, language: str | None) -> tuple[str, ...]:
        asked: list[str] = core.get("timestamp_granularities") or []
        param = "timestamp_granularities"
        if asked and kind != "verbose_json":
            raise BadRequest(f"'{param}' needs response_format verbose_json", param=param)
        for name in asked:
            if name not in self._task.timestamps:
                raise BadRequest(
                    f"this model gives no {name} timestamps{self._hint}", param=param, code="unsupported_parameter"
                )
        subtitles = kind in ("srt", "vtt")
        if subtitles and "segment" not in self._task.timestamps:
            raise BadRequest(
                f"this model gives no timestamps, which {kind} needs{self._hint}",
                param="response_format",
                code="unsupported_parameter",
            )
        known = self._task.timestamp_languages
        if language is not None and known is not None and language not in known:
            if not asked and not subtitles:
                return ()
            raise BadRequest(
                f"this model gives no times for the language {language!r}, which "
                f"{kind if subtitles else repr(param)} needs; it gives them for: {', '.join(known)}",
                param="language",
                code="unsupported_language",
            )
        if asked:
            return tuple(dict.fromkeys(asked))
        return ("segment",) if kind != "json" and kind != "text" and "segment" in self._task.timestamps else ()


def gather(fields: Iterable[tuple[str, str]], parameters: Iterable[str]) -> dict[str, Any]:
    """A form's fields by name: repeated ones as lists, their brackets dropped.

    Raises:
        BadRequest: a field that is not a list was sent twice.
    """
    values: dict[str, Any] = {}
    own = set(parameters)
    for sent, text in fields:
        name = sent.removesuffix("[]")
        field = FIELDS.get(name)
        repeated = sent != name if name in own else field is not None and field.repeated
        if repeated:
            values.setdefault(name, []).append(text)
        elif sent in values:
            raise BadRequest(f"the field {shown(sent)} was sent twice", param=sent[:100])
        else:
            values[sent] = text
    return values
