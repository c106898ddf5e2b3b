"""The command ``omni``: what it is made of, and how an error ends it."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence

import click

from omni import __version__
from omni.cli.config import config
from omni.cli.doctor import doctor
from omni.cli.launch import launch
from omni.cli.new_plugin import new_plugin
from omni.cli.plugins import plugins
from omni.cli.pull import pull
from omni.cli.recipes import recipes
from omni.cli.say import say
from omni.cli.state import Group, State
from omni.cli.transcribe import transcribe
from omni.errors import OmniError


class Root(Group):
    """Core's commands, then those of plugins, which are only looked up when they can matter."""

    _complete = False

    def list_commands(self, ctx: click.Context) -> list[str]:
        self._add_plugin_commands(ctx)
        return super().list_commands(ctx)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.commands:
            self._add_plugin_commands(ctx)
        if cmd_name not in self.commands:
            ctx.ensure_object(State).warn()
        return super().get_command(ctx, cmd_name)

    def _add_plugin_commands(self, ctx: click.Context) -> None:
        if not self._complete:
            self._complete = True
            ctx.ensure_object(State).all_plugins.add_commands(self)


def build() -> click.Group:
    """A fresh ``omni`` command."""
    root = Root(
        name="omni",
        help="Serve speech and omni models that are pipelines of stages.",
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )
    click.version_option(__version__, prog_name="omni", message="%(prog)s %(version)s")(root)
    for command in (launch, recipes, plugins, pull, say, transcribe, doctor, config, new_plugin):
        root.add_command(command)
    return root


def main(args: Sequence[str] | None = None) -> int:
    """Run ``omni`` and return its exit status: 0, 1 for an error, 2 for wrong usage, 130 after Ctrl-C (but 0 from a
    server that listens).

    An error is one line on stderr; ``--debug`` adds its traceback. When what reads stdout has gone, nothing is said: 1.
    """
    state = State()
    try:
        result = build().main(args=args, prog_name="omni", standalone_mode=False, obj=state)
        return result if isinstance(result, int) else 0
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return 130
    except OmniError as error:
        _fail(state, error.message)
        return 1
    except SystemExit as end:
        # click's quiet way out when what reads stdout has gone.
        return end.code if isinstance(end.code, int) else 1
    except OSError as error:
        _fail(state, f"{error.filename}: {error.strerror}" if error.filename else error.strerror or str(error))
        return 1
    except Exception as error:  # noqa: BLE001 - the last place that can give it a readable end
        _fail(state, f"{type(error).__name__}: {error} (a bug: --debug shows where)")
        return 1


def _fail(state: State, message: str) -> None:
    if state.debug:
        traceback.print_exc()
    click.echo(f"error: {' '.join(message.split())}", err=True)


if __name__ == "__main__":
    sys.exit(main())
