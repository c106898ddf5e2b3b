"""What ``omni launch`` prints when it serves: models, address, and command lines that work as they are."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from omni.cli.serving import API_KEY_ENV
from omni.recipe import Recipe, Speech

if TYPE_CHECKING:
    from omni.pipeline import Pipeline
    from omni.service import Service

SPOKEN = "Hello from omni, where every model is a pipeline."


def banner(service: Service, url: str, *, locked: bool, drain_seconds: float) -> str:
    """``locked``: clients need the API key."""
    lines = [f"serving on {url} (interactive documentation: {url}/docs)", ""]
    for pipeline in service.pipelines.values():
        lines += _model(pipeline)
    others = [name for name in service.names() if name not in service.pipelines]
    if others:
        lines.append(f"  also understood: {', '.join(others)}")
    lines += ["", "try it:", *(f"  {line}" for line in examples(service, url, locked=locked)), ""]
    lines.append(
        f"Ctrl-C ends it: what is under way may finish (at most {drain_seconds:g} s), a second Ctrl-C does not wait."
    )
    return "\n".join(lines)


def _model(pipeline: Pipeline) -> list[str]:
    recipe = pipeline.recipe
    lines = [f"  {recipe.name}: {recipe.task.kind}, licence {recipe.license}"]
    if isinstance(recipe.task, Speech) and recipe.task.voices:
        lines.append(f"    voices: {', '.join(voice.id for voice in recipe.task.voices)}")
    lines += [f"    {stage}: {note}" for stage, note in pipeline.notes.items()]
    return lines


def examples(service: Service, url: str, *, locked: bool) -> list[str]:
    """One curl line for each task that is served. The one that transcribes takes what the one that speaks has made."""
    key = f'-H "Authorization: Bearer ${API_KEY_ENV}" ' if locked else ""
    speech, transcription = service.default("speech"), service.default("transcription")
    lines = []
    if locked:
        lines.append(f"# with the server's key in {API_KEY_ENV}")
    if speech is not None:
        body = json.dumps(_request(speech.recipe))
        lines.append(
            f"curl -sS {url}/v1/audio/speech {key}-H 'Content-Type: application/json' -d '{body}' -o speech.mp3"
        )
    if transcription is not None:
        if speech is None:
            lines.append("# with a recording called speech.mp3")
        form = f"-F model={transcription.recipe.name} -F file=@speech.mp3"
        lines.append(f"curl -sS {url}/v1/audio/transcriptions {key}{form}")
    return lines


def _request(recipe: Recipe) -> Mapping[str, str]:
    body = {"model": recipe.name, "input": SPOKEN}
    if isinstance(recipe.task, Speech) and recipe.task.voices:
        body["voice"] = recipe.task.voices[0].id
    return body
