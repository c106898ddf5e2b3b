"""``omni say``: one text, one sound file."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click
import yaml

from omni.cli.selection import Selection, selection_options
from omni.cli.state import Command, State, pass_state

FORMATS = ("mp3", "opus", "aac", "flac", "wav", "pcm")
_SUFFIXES = {f".{name}": name for name in FORMATS} | {".ogg": "opus"}


@click.command(cls=Command, short_help="Speak a text into a file.")
@click.argument("text")
@click.option(
    "-o",
    "--output",
    required=True,
    metavar="FILE",
    help="Where the sound goes; - is stdout, which gets it as it is made.",
)
@click.option(
    "--format", "audio_format", type=click.Choice(FORMATS), help="Default: what FILE's suffix says; for -, wav."
)
@click.option("--voice", help="Default: the recipe's first voice.")
@click.option("--speed", type=float, help="1 is the voice's own.")
@click.option("--seed", type=int, help="The same seed gives the same sound.")
@click.option("-p", "--param", "params", metavar="KEY=VALUE", multiple=True, help="Any other request field; repeats.")
@click.option("--url", metavar="URL", help="Ask this server instead of loading the recipe here.")
@click.option("--api-key", envvar="OMNI_API_KEY", help="The server's key.  [env: OMNI_API_KEY]")
@selection_options(many=False)
@pass_state
def say(
    state: State,
    /,
    text: str,
    output: str,
    audio_format: str | None,
    voice: str | None,
    speed: float | None,
    seed: int | None,
    params: tuple[str, ...],
    url: str | None,
    api_key: str | None,
    **selected: Any,
) -> None:
    """Speak TEXT (- reads it from stdin) into a file.

    It is what a server would answer: the same checks, the same formats.
    """
    from omni.cli.client import run, target

    whole = output != "-"
    if whole:
        _check_place(Path(output))  # before minutes may go into loading
    body: dict[str, Any] = {
        "input": _stdin() if text == "-" else text,
        "voice": voice,
        "speed": speed,
        "seed": seed,
        "response_format": audio_format or _format_of(output),
        "stream": False if whole else None,
    }
    body = {name: value for name, value in body.items() if value is not None}
    for name, value in map(_param, params):
        if name in body or name == "model":
            raise click.UsageError(f"-p {name}: this field has an option of its own, or is given twice")
        body[name] = value
    if not whole and sys.stdout.isatty():
        raise click.UsageError("sound would be written to the terminal: give -o FILE, or pipe it to a player")
    place = target(state, url, api_key, Selection.read(**selected), "speech")
    run(place, "/v1/audio/speech", json=body, output=Path(output) if whole else None)


def _check_place(output: Path) -> None:
    if output.is_dir():
        raise click.UsageError(f"-o {output}: this is a folder")
    if not output.parent.is_dir():
        raise click.UsageError(f"-o {output}: there is no folder {output.parent}")
    if not os.access(output if output.exists() else output.parent, os.W_OK):
        raise click.UsageError(f"-o {output}: you may not write there")


def _stdin() -> str:
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise click.UsageError(f"the text on stdin is not UTF-8: {error}") from error


def _format_of(output: str) -> str:
    if output == "-":
        return "wav"
    suffix = Path(output).suffix.lower()
    if suffix not in _SUFFIXES:
        known = ", ".join(_SUFFIXES)
        raise click.UsageError(f"{output}: the suffix names no format (known: {known}); use one, or --format")
    return _SUFFIXES[suffix]


def _param(text: str) -> tuple[str, Any]:
    name, equals, raw = text.partition("=")
    if not equals or not name:
        raise click.UsageError(f"-p {text!r}: write KEY=VALUE")
    try:
        return name, yaml.safe_load(raw)
    except yaml.YAMLError as error:
        raise click.UsageError(f"-p {text!r}: the value is not valid YAML") from error
