"""``omni doctor``: what this machine can run, and what is missing for the rest."""

from __future__ import annotations

import click

from omni import __version__
from omni.cli import machine
from omni.cli.output import fields
from omni.cli.state import Command, State, pass_state


@click.command(cls=Command, short_help="Say what this machine can run, and what is missing.")
@click.argument("recipes", nargs=-1, metavar="[RECIPE]...")
@click.option("--host", default="127.0.0.1", show_default=True, help="Where a server would listen.")
@click.option("--port", default=8000, show_default=True, type=click.IntRange(1, 65535), help="Its port.")
@pass_state
def doctor(state: State, recipes: tuple[str, ...], host: str, port: int) -> int:
    """Say what this machine can run, and what is missing for which recipe.

    Looks at every recipe, or at those named. The exit status is 1 when one that was named (none named: a default
    recipe) cannot run, or a plugin failed to import.
    """
    from omni.cli.readiness import examine

    plugins = state.all_plugins
    chosen = [plugins.recipe(name) for name in recipes] or sorted(plugins.recipes.values(), key=lambda r: r.name)
    click.echo(fields([("omni", __version__), *machine.facts(host, port)]))
    bad = False
    for recipe in chosen:
        found = examine(plugins, recipe)
        needed = bool(recipes) or recipe.default
        bad = bad or (needed and bool(found.problems))
        click.echo(f"\n{recipe.name}: {found.state}")
        lines = [("missing", problem) for problem in found.problems]
        click.echo(fields([*lines, ("weights", found.weights), ("do", found.fix or "")], "  "))
    for plugin in plugins.plugins:
        if plugin.error is not None:
            bad = True
            click.echo(f"\nplugin {plugin.name} failed: {plugin.error.strip().splitlines()[-1]} (see: omni plugins)")
    return 1 if bad else 0
