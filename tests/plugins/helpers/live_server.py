"""A recipe behind a real server on a free port, in a thread of this process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

from omni.config import configure
from omni.pipeline import Pipeline
from omni.plugins import Plugins
from omni.server.app import create_app
from omni.server.openai_names import model_aliases
from omni.server.run import Server, bind
from omni.server.settings import ServerSettings
from omni.service import Service

PATIENCE = 60.0


class LiveServer:
    """Serves recipes of installed plugins; ``sets`` and ``weights`` as on the command line."""

    def __init__(
        self, recipes: Sequence[str], *, sets: Sequence[str] = (), weights: Sequence[str] = (), **settings: Any
    ) -> None:
        plugins = Plugins.load()
        options = ServerSettings(**settings)
        configs = configure([plugins.recipe(name) for name in recipes], sets=sets, weights=weights)

        async def load() -> Service:
            return await Service.launch(configs, plugins, aliases=model_aliases(options))

        sock = bind("127.0.0.1", 0)
        self.port = sock.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.app = create_app(load, options)
        self._ready = threading.Event()
        self._server = Server(self.app, self._ready.set)
        self._loop: asyncio.AbstractEventLoop

        def run() -> None:
            with asyncio.Runner(loop_factory=self._server.config.get_loop_factory()) as runner:
                self._loop = runner.get_loop()
                runner.run(self._server.serve(sockets=[sock]))
            self._ready.set()

        self._thread = threading.Thread(target=run)
        self._thread.start()
        assert self._ready.wait(PATIENCE)
        if (error := self.app.state.runtime.error) is not None:
            self._thread.join(PATIENCE)
            raise error

    def stop(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._server.stop)
            self._thread.join(PATIENCE)
        assert not self._thread.is_alive()

    @property
    def pipeline(self) -> Pipeline:
        return next(iter(self.app.state.runtime.service.pipelines.values()))
