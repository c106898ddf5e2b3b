"""The hooks a plugin may implement. Every one is optional; all are called once, at start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pluggy

from omni.recipe import Recipe

if TYPE_CHECKING:
    import click
    from fastapi import APIRouter

    from omni.service import Service

hookspec = pluggy.HookspecMarker("omni")
hookimpl = pluggy.HookimplMarker("omni")


@hookspec
def omni_recipes() -> Sequence[Recipe]:  # type: ignore[empty-body]
    """Recipes of this plugin. Must be light: import no torch, no engine, no model code."""


@hookspec
def omni_engines() -> Mapping[str, str]:  # type: ignore[empty-body]
    """AR engines by name, each the ``module:callable`` of an :class:`omni.engines.base.EngineFactory`."""


@hookspec
def omni_transports() -> Mapping[str, str]:  # type: ignore[empty-body]
    """Transports by name, each the ``module:callable`` of an :class:`omni.transports.base.Transport`."""


@hookspec
def omni_executors() -> Mapping[str, str]:  # type: ignore[empty-body]
    """Executors by name, each the ``module:callable`` of an :class:`omni.executors.base.Executor`."""


@hookspec
def omni_routes(router: APIRouter, service: Service) -> Any:
    """Add endpoints, made of :mod:`omni.endpoints` where they take audio or speak; ``service`` says what is served."""


@hookspec
def omni_commands(cli: click.Group) -> Any:
    """Add commands to ``omni``."""
