"""SGLang behind omni's engine interface: this side of the socket, in the server."""

from __future__ import annotations

import itertools
import logging
import secrets
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from omni.engines.base import EngineStats, Handle, ModelSource, Prompt, SamplingParams, Sink, StepOutput
from omni.engines.inputs import check_sampling, columns_of, context_error, seed_of
from omni.engines.sglang import request as requests
from omni.engines.sglang import wire
from omni.engines.sglang.live import LiveRequest
from omni.engines.sglang.process import Process
from omni.engines.sglang.settings import SLACK, arguments, model_settings, parse_options, write_folder
from omni.errors import BadRequest, Busy, ConfigError, OmniError, StageFailed, Unavailable, from_wire

log = logging.getLogger("omni.engines.sglang")


class SGLangEngine:
    """See :class:`omni.engines.base.Engine`.

    SGLang cannot pause a request. One whose client does not read goes on at full speed and its steps are kept here, a
    few integers each and at most ``max_new_tokens`` of them; so it leaves its slot and its KV cache as early as any
    other, and slows none down.
    """

    def __init__(self, source: ModelSource, options: Mapping[str, Any]) -> None:
        self._source = source
        self._options = parse_options(options)
        self._shape = source.shape()
        self._settings = model_settings(source, self._options)
        self._numbers = itertools.count()
        self._key = secrets.token_bytes(32)
        self._process: Process | None = None
        self._thread: threading.Thread | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._started = threading.Event()
        self._failure: ConfigError | None = None
        self._closing = False
        self._down: str | None = "the engine has not been started"
        self._aborts: deque[LiveRequest] = deque()
        self.max_tokens = 0
        self._kv_tokens = 0
        self._life = threading.Lock()  # guards against a close while processes and threads are being started
        self._lock = threading.Lock()
        # Guarded by _lock. Only the engine's thread removes requests.
        self._live: dict[int, LiveRequest] = {}
        self._load = wire.Load(0, 0, 0)
        self._prefix_hits = self._prompt_tokens = self._generated = self._steps = self._preemptions = 0

    # Life ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start SGLang's processes and wait until the model is loaded.

        Raises:
            ConfigError: an option that SGLang does not have, or whatever else kept it from starting.
        """
        with self._life:
            if self._folder is not None or self._closing:
                raise RuntimeError("an engine is started once")
            self._folder = tempfile.TemporaryDirectory(prefix="omni-sglang-")
            folder = Path(self._folder.name)
            write_folder(folder, self._shape, self._settings)
            self._process = Process(self._source.device)
            ours = arguments(self._source, self._shape, self._options, folder)
            self._process.send(wire.Start(ours, list(self._options.arguments())))
            self._thread = threading.Thread(target=self._main, name="omni-sglang-engine", daemon=True)
            self._thread.start()
        self._started.wait()
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Fail what is left with :class:`Unavailable` and end SGLang's processes."""
        with self._life:
            self._closing = True
            if self._process is not None:
                self._process.end()
        if self._thread is not None:
            self._thread.join()
        if self._folder is not None:
            self._folder.cleanup()

    # From any thread ----------------------------------------------------------------------------------------

    def submit(self, request_id: str, prompt: Prompt, params: SamplingParams, sink: Sink) -> Handle:
        """Hand a request to SGLang.

        Raises:
            BadRequest: an impossible parameter, or more positions than the model or the KV cache holds.
            Busy: the queue is full.
            Unavailable: the engine is not running.
        """
        process = self._running()
        check_sampling(params)
        columns = columns_of(prompt, self._shape.codebooks)
        if len(columns) + params.max_new_tokens > self.max_tokens:
            raise context_error(len(columns), params.max_new_tokens, self.max_tokens)
        self._source.check(prompt, params)
        self._check_candidates(params)
        made = LiveRequest(request_id, next(self._numbers), sink, len(columns))
        order = wire.Submit(
            made.number,
            requests.prefix_ids(prompt, columns, self._key, made.number).tobytes(),
            requests.encode(prompt, columns, params, seed_of(params)),
            params.max_new_tokens,
        )
        sink.on_room(process.wake)
        with self._lock:
            self._running()
            if len(self._live) >= self._options.max_running_requests + self._options.max_waiting:
                raise Busy("the queue of the engine is full", retry_after=1.0)
            self._live[made.number] = made
        # If it dies now, the engine's thread fails the request with the others.
        process.send(order)
        return made

    def _check_candidates(self, params: SamplingParams) -> None:
        limit = self._settings.candidates
        if limit and params.temperature > 0 and not 0 < params.top_k <= limit:
            raise BadRequest(f"top_k must be 1 to {limit} on this server", param="top_k")

    def _running(self) -> Process:
        if self._process is None or self._down is not None or self._closing:
            raise Unavailable(self._down or "the engine is closed")
        return self._process

    @property
    def down(self) -> str | None:
        return self._down

    def abort(self, handle: Handle) -> None:
        if not isinstance(handle, LiveRequest):
            raise TypeError("abort takes what submit gave")
        handle.aborted = True
        self._aborts.append(handle)
        if self._process is not None:
            self._process.wake()

    def stats(self) -> EngineStats:
        """Requests as SGLang has them, and those that it does not know of yet."""
        with self._lock:
            open_ = [r for r in self._live.values() if not r.ended]
            begun = sum(r.steps > 0 for r in open_)
            return EngineStats(
                running=max(self._load.running, begun),
                waiting=max(self._load.waiting, len(open_) - begun),
                paused=sum(bool(r.waiting) and not r.aborted for r in self._live.values()),
                kv_tokens_used=self._load.tokens,
                kv_tokens_total=self._kv_tokens,
                prefix_hit_tokens_total=self._prefix_hits,
                prompt_tokens_total=self._prompt_tokens,
                generated_tokens_total=self._generated,
                steps_total=self._steps,
                preemptions_total=self._preemptions,
            )

    # On the engine's thread ---------------------------------------------------------------------------------

    def _main(self) -> None:
        assert self._process is not None
        error: OmniError | None = None
        try:
            while error is None:
                for report in self._process.reports():
                    if isinstance(report, wire.Dead):
                        error = from_wire(report.error)
                    else:
                        self._take(report)
                self._after_wake()
        except (EOFError, OSError):
            pass
        except Exception as cause:
            log.exception("the thread of the SGLang engine has failed")
            error = StageFailed(f"the thread of the SGLang engine has failed: {type(cause).__name__}: {cause}")
        words = self._process.reap()
        if self._closing:
            error = Unavailable("the engine is closed")
        elif error is None or isinstance(error, StageFailed):
            why = "the SGLang engine has died" if error is None else error.message
            error = StageFailed(f"{why}: {words}" if words else why)
        self._die(error)

    def _die(self, error: OmniError) -> None:
        log.log(logging.INFO if self._closing else logging.ERROR, "%s", error.message)
        with self._lock:
            self._down = error.message
            left = list(self._live.values())
            self._live.clear()
            self._load = wire.Load(0, 0, 0)
        for request in left:
            if not request.aborted:
                self._tell(request, lambda r: r.sink.fail(error))
        if not self._started.is_set():
            self._failure = ConfigError(error.message)
            self._started.set()

    def _take(self, report: wire.Report) -> None:
        match report:
            case wire.Leaves():
                assert self._process is not None
                self._process.leftovers = report.files
            case wire.Ready():
                self._kv_tokens = report.tokens
                page = int(self._options.arguments().get("page_size") or 1)
                self.max_tokens = min(self._shape.max_positions, report.tokens - 2 * page - SLACK)
                self._down = None
                self._started.set()
            case wire.Load():
                with self._lock:
                    self._load = report
            case wire.Columns():
                if request := self._live.get(report.number):
                    self._advance(request, report)
            case wire.Ended():
                if request := self._live.get(report.number):
                    request.ended = True
                    if report.error is not None:
                        request.waiting.clear()
                        error = from_wire(report.error)
                        self._tell(request, lambda r: r.sink.fail(error))
                    self._forget_if_done(request)

    def _advance(self, request: LiveRequest, report: wire.Columns) -> None:
        with self._lock:
            if not request.steps:
                self._prefix_hits += report.cached
                self._prompt_tokens += request.prompt_tokens
            self._preemptions += report.retractions - request.retractions
            self._steps = max(self._steps, report.columns[-1][0])
            self._generated += len(report.columns) - (report.reason == "stop")
        request.retractions = report.retractions
        first = 2 if self._shape.codebooks else 1
        for column in report.columns:
            request.waiting.append(
                StepOutput(
                    step=request.steps,
                    codes=np.array(column[first:], np.int64),
                    prompt_tokens=request.prompt_tokens,
                    cached_tokens=report.cached,
                )
            )
            request.steps += 1
        if report.reason is not None:
            last = request.waiting[-1]
            last.finish_reason = report.reason
            if report.reason == "stop":
                last.codes = None
        self._deliver(request)

    def _deliver(self, request: LiveRequest) -> None:
        """Give the sink what it has room for."""

        def push(r: LiveRequest) -> None:
            while r.waiting and not r.aborted and r.sink.room() > 0:
                output = r.waiting.popleft()
                r.sink.push(output)
                if output.finish_reason is not None:
                    r.sink.finish()

        self._tell(request, push)

    def _after_wake(self) -> None:
        """Deal with what other threads left: aborts, and sinks with room."""
        assert self._process is not None
        while self._aborts:
            request = self._aborts.popleft()
            if request.number in self._live and not request.ended:
                self._process.send(wire.Abort(request.number))
            self._forget_if_done(request)
        for request in [r for r in self._live.values() if r.waiting and not r.aborted]:
            self._deliver(request)
            self._forget_if_done(request)

    def _forget_if_done(self, request: LiveRequest) -> None:
        if request.ended and (request.aborted or not request.waiting):
            with self._lock:
                self._live.pop(request.number, None)

    def _tell(self, request: LiveRequest, call: Callable[[LiveRequest], None]) -> None:
        """Call a request's sink; one that raises loses its request and harms no other."""
        if request.aborted:
            return
        try:
            call(request)
        except Exception:
            log.exception("the sink of request %s has failed", request.request_id)
            self.abort(request)
