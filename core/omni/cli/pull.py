"""``omni pull``: bring a recipe's weights to this machine."""

from __future__ import annotations

import click

from omni.cli.state import Command, State, pass_state
from omni.weights import locate


@click.command(cls=Command, short_help="Fetch a recipe's weights.")
@click.argument("recipe")
@click.option("--weights", metavar="SOURCE", help="Other weights for it: a Hub id (owner/name[@revision]) or a folder.")
@pass_state
def pull(state: State, recipe: str, weights: str | None) -> None:
    """Fetch the weights of RECIPE, and those that a stage has of its own, and print where they are.

    What is there already is not fetched again. The Hub's own variables hold: HF_TOKEN, HF_HOME, HF_HUB_OFFLINE.
    """
    known = state.plugins.recipe(recipe)
    found = [locate(known, None if stage else weights, stage=stage) for stage in known.all_weights()]
    if not any(found):
        click.echo(f"recipe {recipe!r} needs no weights", err=True)
    for place in filter(None, found):
        click.echo(place.path)
