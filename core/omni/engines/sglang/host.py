"""The process in which SGLang's engine lives: ``python -m omni.engines.sglang.host DESCRIPTOR``.

SGLang wants a process for itself: it sets signal handlers, environment variables and the event loop's policy, and ends
by killing every child of the process that it is in. Here it may. The server is told at once when one of SGLang's own
processes has died, and when the server dies, its socket closes and this process ends with all below it.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from omni.engines.sglang import wire
from omni.errors import BadRequest, ConfigError, OmniError, StageFailed

_LOAD_SECONDS = 0.05


def main() -> None:
    connection = Connection(int(sys.argv[1]))
    start = wire.receive_order(connection)
    assert isinstance(start, wire.Start)
    host = Host(connection, str(start.arguments["model_path"]))
    threading.Thread(target=host.listen, name="orders", daemon=True).start()
    try:
        engine = _start(start, host.leaves)
    except Exception as error:  # noqa: BLE001 - told to the server as a typed error
        host.dead(error if isinstance(error, OmniError) else ConfigError(f"SGLang did not start: {error}"))
        return
    host.serve(engine)


def _start(start: wire.Start, leaves: Callable[[list[str]], None]) -> Any:
    from omni.engines.sglang import adapter
    from omni.engines.sglang.settings import refuse_wrong

    refuse_wrong({name: start.arguments[name] for name in start.by_user}, adapter.option_types())
    return adapter.start(start.arguments, leaves)


class Host:
    def __init__(self, connection: Connection, folder: str) -> None:
        self._connection = connection
        self._folder = folder
        self._files: list[str] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._engine: Any
        self._processor: str
        self._tasks: dict[int, tuple[asyncio.Task[OmniError | None], asyncio.Task[None]]] = {}
        self._reports: list[wire.Report] = []
        self._load = wire.Load(0, 0, 0)
        self._watching = False

    # On a thread of its own ---------------------------------------------------------------------------------

    def listen(self) -> None:
        """Take the server's orders. When it is gone, remove what it would have removed, and end this process and
        everything below it."""
        while True:
            try:
                order = wire.receive_order(self._connection)
            except (EOFError, OSError):
                shutil.rmtree(self._folder, ignore_errors=True)
                for file in self._files:
                    Path(file).unlink(missing_ok=True)
                os.killpg(0, signal.SIGKILL)
            # The server sends requests only after it knows that we are ready.
            assert self._loop is not None
            self._loop.call_soon_threadsafe(self._obey, order)

    # On the main thread -------------------------------------------------------------------------------------

    def dead(self, error: OmniError) -> None:
        wire.send_reports(self._connection, [wire.Dead(error.to_wire())])

    def leaves(self, files: list[str]) -> None:
        self._files = files
        wire.send_reports(self._connection, [wire.Leaves(files)])

    def serve(self, engine: Any) -> None:
        from omni.engines.sglang import adapter
        from omni.engines.sglang.models.ar import Deliver

        self._engine = engine
        self._processor = Deliver.to_str()
        ready = wire.Ready(adapter.token_capacity(engine))
        loop: asyncio.AbstractEventLoop = engine.loop
        for pid in adapter.child_pids(engine):
            loop.add_reader(os.pidfd_open(pid), self._child_died, pid)
        adapter.on_failure(engine, partial(self._give_up, "has failed"))
        self._loop = loop
        wire.send_reports(self._connection, [ready])
        loop.run_forever()

    def _child_died(self, pid: int) -> None:
        # Left to be waited for, since the process object does that too.
        found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        self._give_up("has died" if found is None else f"has died (status {found.si_status})")

    def _give_up(self, what: str) -> None:
        self.dead(StageFailed(f"a process of the SGLang engine {what}"))
        os._exit(1)  # SGLang's processes die with their parent

    def _tell(self, report: wire.Report) -> None:
        """Reports of one turn of the loop travel together."""
        if not self._reports:
            asyncio.get_running_loop().call_soon(self._flush)
        self._reports.append(report)

    def _flush(self) -> None:
        reports, self._reports = self._reports, []
        wire.send_reports(self._connection, reports)

    def _obey(self, order: wire.Order) -> None:
        match order:
            case wire.Submit():
                # Two tasks: one that is cancelled before its first step never comes to a line of its own.
                work = asyncio.create_task(self._generate(order))
                self._tasks[order.number] = work, asyncio.create_task(self._run(order.number, work))
                if not self._watching:
                    self._watching = True
                    self._watch = asyncio.create_task(self._watch_load())
            case wire.Abort():
                if tasks := self._tasks.get(order.number):
                    tasks[0].cancel()

    # Requests -----------------------------------------------------------------------------------------------

    async def _run(self, number: int, work: asyncio.Task[OmniError | None]) -> None:
        from omni.engines.sglang import adapter

        error: OmniError | None = None
        try:
            error = await work
        except asyncio.CancelledError:
            await adapter.ended(self._engine, str(number))
        except ValueError as cause:
            error = BadRequest(f"SGLang refuses the request: {cause}")
        except Exception as cause:  # noqa: BLE001 - becomes the request's error
            error = StageFailed(f"{type(cause).__name__}: {cause}")
        del self._tasks[number]
        self._tell(wire.Ended(number, None if error is None else error.to_wire()))

    async def _generate(self, order: wire.Submit) -> OmniError | None:
        from omni.engines.sglang import adapter
        from omni.engines.sglang.models.ar import COLUMNS, DATA

        params = {
            "temperature": 0.0,
            "max_new_tokens": order.max_new_tokens,
            "stop_token_ids": [1],
            "custom_params": {DATA: order.data},
        }
        ids = np.frombuffer(order.ids, np.int64).tolist()
        chunks = adapter.generate(self._engine, str(order.number), ids, params, self._processor)
        given = 0
        async for chunk in chunks:
            meta = chunk["meta_info"]
            finish = meta["finish_reason"]
            if finish is not None and finish["type"] == "abort":
                return StageFailed(f"SGLang gave up the request: {finish['message']}")
            columns = meta[COLUMNS]
            given += len(columns)
            reason = None if finish is None else str(finish["type"])
            if reason == "length" and given < order.max_new_tokens:
                return StageFailed(f"SGLang ended the request after {given} of {order.max_new_tokens} steps")
            self._tell(wire.Columns(order.number, columns, reason, meta["cached_tokens"], meta["num_retractions"]))
        return None

    async def _watch_load(self) -> None:
        """Report SGLang's load while there is any."""
        from omni.engines.sglang import adapter

        while True:
            load = wire.Load(*await adapter.load(self._engine))
            if load != self._load:
                self._load = load
                self._tell(load)
            if not (self._tasks or load.running or load.waiting):
                break
            await asyncio.sleep(_LOAD_SECONDS)
        self._watching = False


if __name__ == "__main__":
    main()
