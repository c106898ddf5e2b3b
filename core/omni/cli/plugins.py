"""``omni plugins``: what is installed, and why something is not there."""

from __future__ import annotations

import click

from omni.cli.output import table
from omni.cli.state import Command, State


@click.command(cls=Command)
@click.pass_context
def plugins(context: click.Context) -> int:
    """List the installed plugins and their recipes.

    A plugin that failed is shown with its traceback, and the exit status is 1.
    """
    loaded = context.ensure_object(State).all_plugins
    root = context.find_root()
    assert isinstance(root.command, click.Group)
    root.command.list_commands(root)  # so that what is wrong with plugins' commands shows too
    rows = []
    for plugin in loaded.plugins:
        own = [name for name in loaded.recipes if loaded.owner(name) == plugin.name]
        status = "ok" if plugin.error is None else "FAILED"
        rows.append((plugin.name, plugin.distribution, plugin.version, status, ", ".join(own) or "-"))
    if rows:
        click.echo(table(("PLUGIN", "DISTRIBUTION", "VERSION", "STATUS", "RECIPES"), rows))
    else:
        click.echo("no plugins are installed")
    failed = [plugin for plugin in loaded.plugins if plugin.error is not None]
    for plugin in failed:
        click.echo(f"\n{plugin.name} ({plugin.module}) failed:\n{plugin.error}")
    return 1 if failed else 0
