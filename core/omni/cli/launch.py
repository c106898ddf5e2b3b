"""``omni launch``: serve recipes over HTTP."""

from __future__ import annotations

import logging
from typing import Any

import click

from omni.cli.selection import Selection, selection_options
from omni.cli.serving import Serving, address, server_options
from omni.cli.state import Command, State


@click.command(cls=Command, short_help="Serve recipes over HTTP, as OpenAI's audio API.")
@server_options
@selection_options(many=True)
@click.pass_context
def launch(context: click.Context, /, **options: Any) -> None:
    """Serve recipes over HTTP, with the endpoints of OpenAI's audio API.

    Without --recipe it serves the recipes of the --config file, or else the default ones. Ctrl-C lets requests under
    way finish, up to --drain-seconds, and exits 0; a second Ctrl-C ends them. Before the port is open there is nothing
    to finish, and Ctrl-C exits 130, as with any other command.
    """
    names = ("recipes", "weights", "sets", "engine", "config_file")
    selection = Selection.read(*(options.pop(name) for name in names))
    serving = Serving.read(context, selection, options)
    state = context.ensure_object(State)
    plugins = state.plugins
    configs = selection.configs(plugins)

    # Here and not above: the other commands stay light.
    from omni.cli.banner import banner
    from omni.cli.progress import reporter
    from omni.loading import check
    from omni.server.app import create_app
    from omni.server.openai_names import model_aliases
    from omni.server.run import bind, serve
    from omni.service import Service

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    for chatty in ("httpx", "uvicorn"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    for config in configs:
        check(config)  # before minutes may go into loading another recipe
    settings = serving.settings
    sock = bind(settings.host, settings.port)
    url = address(settings, sock.getsockname()[1])
    progress = reporter(configs)

    async def load() -> Service:
        try:
            return await Service.launch(configs, plugins, aliases=model_aliases(settings), progress=progress)
        finally:
            progress.close()

    app = create_app(load, settings)
    # A failure to load is raised by serve() and printed once, as any other error.
    logging.getLogger("omni.server").addFilter(lambda _: app.state.runtime.state != "failed")

    def on_ready() -> None:
        state.warn()  # of plugins whose routes failed
        locked = settings.api_key is not None
        text = banner(app.state.runtime.service, url, locked=locked, drain_seconds=settings.drain_seconds)
        click.echo(text)

    serve(app, sock, on_ready)
