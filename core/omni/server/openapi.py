"""The API's description: written from the same tables that check requests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from omni import __version__
from omni.audio import MEDIA_TYPES
from omni.server import speech, speech_fields, transcription_fields, transcriptions
from omni.server.fields import Field
from omni.server.runtime import Runtime

_ERROR = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}


Schemas: TypeAlias = dict[str, dict[str, Any]]
"""JSON schemas of parameter models, by recipe."""


def describe(app: FastAPI, runtime: Runtime, spoken: Schemas, heard: Schemas) -> dict[str, Any]:
    """OpenAPI 3.1 of core's and the plugins' endpoints, with the own parameters of the recipes that speak and hear."""
    document = get_openapi(
        title="omni",
        version=__version__,
        description="Speech and omni models behind OpenAI's audio endpoints.",
        routes=app.routes,
    )
    document["paths"][speech.PATH] = {"post": _speech(spoken)}
    document["paths"][transcriptions.PATH] = {"post": _transcription(heard)}
    if runtime.settings.api_key is not None:
        document.setdefault("components", {})["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"key": []}]
    return document


def _speech(parameters: Schemas) -> dict[str, Any]:
    schema = _object(speech_fields.FIELDS.values(), ["input"], parameters)
    sounds: dict[str, Any] = {kind: {} for kind in (*MEDIA_TYPES.values(), "text/event-stream")}
    return {
        "tags": ["audio"],
        "summary": "Text to speech",
        "operationId": "createSpeech",
        "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}},
        "responses": _responses({"description": "The sound, as it is made", "content": sounds}),
    }


def _transcription(parameters: Schemas) -> dict[str, Any]:
    fields = transcription_fields.FIELDS.values()
    form = _object(fields, ["file"], parameters)
    form["properties"] = {"file": {"type": "string", "format": "binary"}, **form["properties"]}
    body = _object(fields, ["input_audio"], parameters)
    audio = {
        "type": "object",
        "required": ["data"],
        "properties": {"data": {"type": "string", "format": "byte"}, "format": {"type": "string"}},
    }
    body["properties"] = {"input_audio": audio, **body["properties"]}
    kinds = ("application/json", "text/plain", "application/x-subrip", "text/vtt", "text/event-stream")
    return {
        "tags": ["audio"],
        "summary": "Speech to text",
        "operationId": "createTranscription",
        "requestBody": {
            "required": True,
            "content": {"multipart/form-data": {"schema": form}, "application/json": {"schema": body}},
        },
        "responses": _responses({"description": "The transcript", "content": {kind: {} for kind in kinds}}),
    }


def _object(fields: Iterable[Field], required: list[str], parameters: Schemas) -> dict[str, Any]:
    """Core's fields and every served recipe's own, which say whose they are."""
    properties = {field.name: field.schema() for field in fields}
    for recipe, schema in parameters.items():
        for name, entry in schema.get("properties", {}).items():
            about = f"{entry.get('description', '')} (parameter of {recipe})".strip()
            properties.setdefault(name, {**entry, "description": about})
    return {"type": "object", "required": required, "properties": properties, "additionalProperties": False}


def _responses(success: dict[str, Any]) -> dict[str, Any]:
    failure = {"description": "OpenAI's error envelope", "content": {"application/json": {"schema": _ERROR}}}
    return {"200": success, "4XX": failure, "5XX": failure}
