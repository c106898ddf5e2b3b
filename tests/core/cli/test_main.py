"""How a command ends: exit status, one line for an error, a traceback on request; and plugins' own commands."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from omni import __version__

HEAVY = ("torch", "transformers", "onnxruntime", "fastapi", "uvicorn", "ctranslate2", "scipy")


def test_error_is_one_line(omni) -> None:
    ran = omni("recipes", "show", "nothing")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err == "error: there is no recipe 'nothing'; there are: toy-ears, toy-voice\n"


@pytest.mark.parametrize("args", [("--debug", "recipes", "show", "nothing"), ("recipes", "show", "nothing", "--debug")])
def test_debug_shows_the_traceback(omni, args) -> None:
    ran = omni(*args)
    assert ran.code == 1
    assert "Traceback" in ran.err
    assert "ModelNotFound" in ran.err


@pytest.mark.parametrize("args", [("nothing",), ("recipes", "--nothing"), ("say",), ("recipes", "show")])
def test_wrong_usage_is_2(omni, args) -> None:
    ran = omni(*args)
    assert ran.code == 2
    assert "Traceback" not in ran.err


def test_version(omni) -> None:
    assert omni("--version") == (0, f"omni {__version__}\n", "")


def test_a_bug_is_one_line_too(omni, monkeypatch) -> None:
    monkeypatch.setattr("omni.cli.pull.locate", lambda *_, **__: 1 / 0)
    ran = omni("pull", "toy-voice")
    assert ran.code == 1
    assert ran.err == "error: ZeroDivisionError: division by zero (a bug: --debug shows where)\n"


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (PermissionError(13, "Permission denied", "/a/file"), "error: /a/file: Permission denied\n"),
        (OSError(28, "No space left on device"), "error: No space left on device\n"),
    ],
)
def test_what_the_machine_refuses_is_no_bug(omni, monkeypatch, error, line) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("omni.cli.pull.locate", refuse)
    assert omni("pull", "toy-voice") == (1, "", line)


@pytest.mark.parametrize("args", [["recipes", "--json"], ["--help"]])
def test_a_reader_that_has_gone_is_not_complained_about(args) -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run([sys.executable, "-m", "omni", *args], stdout=write, stderr=subprocess.PIPE, text=True)
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (1, "")


def test_interrupt_is_130(omni, monkeypatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("omni.cli.pull.locate", interrupt)
    assert omni("pull", "toy-voice").code == 130


COMMANDS = """
import click
from omni import hookimpl

@hookimpl
def omni_commands(cli):
    @cli.command()
    def {name}():
        "Says that it ran."
        click.echo("it ran")
"""


def test_plugin_adds_a_command(omni, installed, module) -> None:
    module("with_command", COMMANDS.format(name="sing"))
    installed.add("with-command", "with_command")
    assert omni("sing") == (0, "it ran\n", "")
    assert "Says that it ran." in omni("--help").out


def test_plugin_cannot_replace_a_command(omni, installed, module) -> None:
    module("with_theft", COMMANDS.format(name="recipes"))
    installed.add("with-theft", "with_theft")
    assert "toy-voice" in omni("recipes").out
    ran = omni("plugins")
    assert ran.code == 1
    assert "ConfigError: the command 'recipes' exists already" in ran.out


@pytest.mark.parametrize("args", [["-m", "omni", "--help"], ["-m", "omni", "recipes"], ["-m", "omni", "plugins"]])
def test_light(args: list[str]) -> None:
    """Listing loads neither a model's libraries nor the server's."""
    probe = (
        "import sys, runpy\n"
        f"sys.argv = ['omni', *{args[2:]!r}]\n"
        "try:\n    runpy.run_module('omni', run_name='__main__')\n"
        "except SystemExit as end:\n    assert not end.code, end.code\n"
        f"print('HEAVY', [name for name in {HEAVY!r} if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "HEAVY []"


def test_importing_omni_is_light() -> None:
    probe = f"import omni, sys; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
