"""The options of a server, shared by the command that starts one and the command that explains them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from omni.cli.selection import Selection
from omni.errors import ConfigError

if TYPE_CHECKING:
    from omni.server.settings import ServerSettings

F = TypeVar("F", bound=Callable[..., Any])

API_KEY_ENV = "OMNI_API_KEY"

_OPTIONS = {
    "host": "--host",
    "port": "--port",
    "api_key": "--api-key",
    "aliases": "--no-openai-names",
    "max_upload_mb": "--max-upload-mb",
    "drain_seconds": "--drain-seconds",
}


@dataclass(frozen=True)
class Serving:
    """Checked settings of a server, and for those that are not a default the layer that each came from."""

    settings: ServerSettings
    sources: Mapping[str, str]

    @classmethod
    def read(cls, context: click.Context, selection: Selection, options: Mapping[str, Any]) -> Serving:
        """Lay the options over the file's ``server`` section.

        Raises:
            ConfigError: it names the layer and the field that does not exist or is out of range.
        """
        from pydantic import ValidationError

        from omni.config import describe
        from omni.server.settings import ServerSettings

        values: dict[str, Any] = dict(selection.content["server"])
        sources = dict.fromkeys(values, str(selection.file))
        for name, option in _OPTIONS.items():
            if options[name] is not None:
                values[name] = options[name]
                from_env = context.get_parameter_source(name) is ParameterSource.ENVIRONMENT
                sources[name] = API_KEY_ENV if from_env else option
        try:
            return cls(ServerSettings.model_validate(values), sources)
        except ValidationError as error:
            wrong = {str(entry["loc"][0]) for entry in error.errors() if entry["loc"]}
            layers = ", ".join(sorted({sources[name] for name in wrong if name in sources}))
            known = ", ".join(ServerSettings.model_fields)
            raise ConfigError(f"{layers or 'server'}: {describe(error)} (settings of the server: {known})") from error


def server_options(function: F) -> F:
    """The options that make a :class:`Serving`; those not given are None."""
    options = (
        click.option("--host", help="Address to listen on.  [default: 127.0.0.1]"),
        click.option("--port", type=int, help="Port to listen on.  [default: 8000]"),
        click.option(
            "--api-key",
            envvar=API_KEY_ENV,
            show_envvar=True,
            help="Clients must send it as a Bearer token.",
        ),
        click.option(
            "--no-openai-names",
            "aliases",
            flag_value=False,
            type=bool,
            default=None,
            help="Do not understand OpenAI's own names, such as tts-1 and alloy.",
        ),
        click.option("--max-upload-mb", type=float, help="Largest uploaded file, in MiB.  [default: 1024]"),
        click.option(
            "--drain-seconds",
            type=float,
            help="How long requests under way may go on after Ctrl-C.  [default: 30]",
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function


def address(settings: ServerSettings, port: int | None = None) -> str:
    """The URL under which this machine reaches the server."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(settings.host, settings.host)
    return f"http://{f'[{host}]' if ':' in host else host}:{settings.port if port is None else port}"
