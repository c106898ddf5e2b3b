"""``omni config explain``: every setting, its value, and where it came from."""

from __future__ import annotations

import json
from typing import Any

import click

from omni.cli.output import table
from omni.cli.selection import Selection, selection_options
from omni.cli.serving import Serving, server_options
from omni.cli.state import Group, State


@click.group(cls=Group)
def config() -> None:
    """Show every setting and where it came from."""


@config.command("explain")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@server_options
@selection_options(many=True)
@click.pass_context
def explain_command(context: click.Context, /, as_json: bool, **options: Any) -> None:
    """Show every setting that 'omni launch' would use with the same options, and where it came from.

    Later layers win: a field's default, the recipe, the --config file, the command line.
    """
    from omni.cli.explain import Line, explain

    names = ("recipes", "weights", "sets", "engine", "config_file")
    selection = Selection.read(*(options.pop(name) for name in names))
    serving = Serving.read(context, selection, options)
    lines = [
        Line(f"server.{name}", value, serving.sources.get(name, "default"))
        for name, value in serving.settings.model_dump(mode="json").items()
    ]
    for chosen in selection.configs(context.ensure_object(State).plugins):
        lines += explain(chosen)
    if as_json:
        rows = [{"setting": line.setting, "value": line.value, "source": line.source} for line in lines]
        click.echo(json.dumps(rows, indent=2, default=str))
    else:
        click.echo(
            table(
                ("SETTING", "VALUE", "FROM"),
                [(line.setting, json.dumps(line.value, default=str), line.source) for line in lines],
            )
        )
