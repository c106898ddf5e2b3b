"""``omni new-plugin``: a package that installs, is listed, serves and passes the conformance kit as it is."""

from __future__ import annotations

import keyword
import re
import sys
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from importlib.util import find_spec
from pathlib import Path, PurePosixPath

import click

from omni.cli.state import Command, State, pass_state
from omni.errors import ConfigError

NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
TEMPLATE_NAME, TEMPLATE_PACKAGE = "my-plugin", "my_plugin"


@click.command("new-plugin", cls=Command, short_help="Write a plugin that works, to start from.")
@click.argument("name")
@click.option(
    "--task", type=click.Choice(["speech", "transcription"]), default="speech", show_default=True, help="What it does."
)
@click.option(
    "--dir",
    "parent",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(),
    help="Where the folder NAME is made; the current folder by default.",
)
@pass_state
def new_plugin(state: State, name: str, task: str, parent: Path) -> None:
    """Write a plugin called NAME: a distribution with one working recipe and a test of it.

    NAME is lower case, with hyphens between words; it becomes the distribution, the recipe and, with underscores, the
    package.
    """
    if name in state.plugins.recipes:
        raise ConfigError(f"there is a recipe {name!r} already, of plugin {state.plugins.owner(name)!r}")
    folder = create(name, task, parent)
    click.echo(f"{folder} is a plugin with the recipe {name!r}. Next:")
    click.echo(f"  pip install -e '{folder}[test]'")
    click.echo(f"  omni launch --recipe {name}")
    click.echo(f"  pytest {folder}")


def create(name: str, task: str, parent: Path) -> Path:
    """Write the scaffold into the new folder ``parent/name`` and return it.

    Raises:
        ConfigError: the name cannot be a package's, or is taken; the folder exists.
    """
    package = check_name(name)
    folder = parent / name
    if folder.exists():
        raise ConfigError(f"{folder} exists already; nothing was written")
    for path, text in _template(files("omni.cli") / "template" / task, PurePosixPath()):
        target = folder / _filled(str(path), name, package)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(_filled(text, name, package), "utf-8")
    return folder


def check_name(name: str) -> str:
    """The package's name. Raises ConfigError that says what is wrong with the plugin's."""
    if not NAME.fullmatch(name) or len(name) > 64:
        raise ConfigError(
            f"{name!r} is no name for a plugin: at most 64 lower-case letters and digits, hyphens between words, a "
            "letter first, such as 'my-voice'"
        )
    package = name.replace("-", "_")
    if keyword.iskeyword(package):
        raise ConfigError(f"{package!r} is a word of Python's own; choose another name")
    if package in sys.stdlib_module_names or find_spec(package) is not None:
        raise ConfigError(f"the package {package!r} exists already in this Python; choose another name")
    return package


def _template(folder: Traversable, path: PurePosixPath) -> Iterator[tuple[PurePosixPath, str]]:
    for entry in sorted(folder.iterdir(), key=lambda item: item.name):
        if entry.name == "__pycache__":
            continue
        if entry.is_dir():
            yield from _template(entry, path / entry.name)
        else:
            yield path / entry.name, entry.read_text("utf-8")


def _filled(text: str, name: str, package: str) -> str:
    return text.replace(TEMPLATE_PACKAGE, package).replace(TEMPLATE_NAME, name)
