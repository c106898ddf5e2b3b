"""``omni transcribe``: one sound file, its text."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from omni.cli.selection import Selection, selection_options
from omni.cli.state import Command, State, pass_state

FORMATS = ("text", "json", "srt", "vtt", "verbose_json")


@click.command(cls=Command, short_help="Write down what a file says.")
@click.argument("audio", type=click.Path(path_type=Path, exists=True, dir_okay=False, allow_dash=True), metavar="FILE")
@click.option("--format", "text_format", type=click.Choice(FORMATS), help="Default: text; with --words, verbose_json.")
@click.option("--language", help="Code or name; by default it is detected.")
@click.option("--words", is_flag=True, help="Times of every word.")
@click.option("--url", metavar="URL", help="Ask this server instead of loading the recipe here.")
@click.option("--api-key", envvar="OMNI_API_KEY", help="The server's key.  [env: OMNI_API_KEY]")
@selection_options(many=False)
@pass_state
def transcribe(
    state: State,
    /,
    audio: Path,
    text_format: str | None,
    language: str | None,
    words: bool,
    url: str | None,
    api_key: str | None,
    **selected: Any,
) -> None:
    """Write what is said in FILE (- is stdin) to stdout.

    It is what a server would answer: the same checks, the same formats.
    """
    from omni.cli.client import run, target

    if words and text_format not in (None, "verbose_json"):
        raise click.UsageError("--words needs --format verbose_json, the one format that has words")
    form: dict[str, Any] = {"response_format": text_format or ("verbose_json" if words else "text")}
    if language is not None:
        form["language"] = language
    if words:
        form["timestamp_granularities[]"] = ["word", "segment"]
    place = target(state, url, api_key, Selection.read(**selected), "transcription")
    if str(audio) == "-":
        upload: Any = ("audio", sys.stdin.buffer.read())
        run(place, "/v1/audio/transcriptions", form=form, upload=upload, end=b"\n")
        return
    with audio.open("rb") as content:
        run(place, "/v1/audio/transcriptions", form=form, upload=(audio.name, content), end=b"\n")
