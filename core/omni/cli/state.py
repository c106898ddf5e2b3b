"""What one run of ``omni`` knows, and the classes its commands are made of."""

from __future__ import annotations

from functools import cached_property

import click

from omni.plugins import Plugins


class State:
    """Made by ``main`` and handed to every command as ``ctx.obj``."""

    def __init__(self) -> None:
        self.debug = False
        self._warned: set[str] = set()

    @cached_property
    def all_plugins(self) -> Plugins:
        """The installed plugins, those that failed included."""
        return Plugins.load()

    @property
    def plugins(self) -> Plugins:
        """The installed plugins; those that failed have been named on stderr."""
        self.warn()
        return self.all_plugins

    def warn(self) -> None:
        """Name the plugins that failed, each once."""
        for plugin in self.all_plugins.plugins:
            if plugin.error is not None and plugin.name not in self._warned:
                self._warned.add(plugin.name)
                reason = plugin.error.strip().splitlines()[-1]
                click.echo(f"warning: plugin {plugin.name!r} failed: {reason} (see: omni plugins)", err=True)


pass_state = click.make_pass_decorator(State)


def _debug(context: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        context.ensure_object(State).debug = True


def _debug_option() -> click.Option:
    return click.Option(
        ["--debug"],
        is_flag=True,
        expose_value=False,
        is_eager=True,
        callback=_debug,
        help="Show the traceback of an error.",
    )


class Command(click.Command):
    """A command that also understands ``--debug``."""

    def __init__(self, *args: object, **fields: object) -> None:
        super().__init__(*args, **fields)  # type: ignore[arg-type]
        self.params.append(_debug_option())


class Group(click.Group):
    """A group whose commands understand ``--debug``, as it does itself."""

    command_class = Command

    def __init__(self, *args: object, **fields: object) -> None:
        super().__init__(*args, **fields)  # type: ignore[arg-type]
        self.params.append(_debug_option())


Group.group_class = Group
