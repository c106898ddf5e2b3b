"""The embedded AR engine: one thread that admits, prefills, decodes and delivers, and sleeps when there is nothing."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, cast

import numpy as np
import torch

from omni.engines.base import ARModel, EngineStats, Handle, Prompt, SamplingParams, Sink, StepOutput
from omni.engines.inputs import check_sampling, context_error
from omni.engines.torch.attention import SdpaAttention
from omni.engines.torch.model import TorchARModel
from omni.engines.torch.options import TorchOptions, parse_options
from omni.engines.torch.packing import pack_products
from omni.engines.torch.request import Phase, Request
from omni.engines.torch.runner import Runner
from omni.engines.torch.sampling import UniformSource
from omni.engines.torch.scheduler import Chunk, Scheduler
from omni.errors import Busy, ConfigError, OmniError, StageFailed, Unavailable
from omni.memory import memory

log = logging.getLogger("omni.engines.torch")

_STEPS_AFTER_SHORTAGE = 500
"""Steps with a smaller batch, after memory was short, before a larger one is tried again."""


def create_engine(model: ARModel, options: Mapping[str, Any]) -> TorchEngine:
    """The factory behind the engine name ``torch``; ``model`` is a :class:`TorchARModel`.

    Raises:
        ConfigError: an option is unknown or out of range.
    """
    return TorchEngine(cast(TorchARModel, model), parse_options(options))


class TorchEngine:
    """See :class:`omni.engines.base.Engine`.

    The same seed gives the same random numbers whatever else runs. Logits agree between batch sizes, chunkings and
    cache states up to float rounding (1e-6 relative in float32), so codes agree unless two entries tie that closely.
    """

    def __init__(self, model: TorchARModel, options: TorchOptions, *, source: UniformSource | None = None) -> None:
        self._model = model
        self._options = options
        self._source = source
        self._wake = threading.Condition()
        # Guarded by _wake: what other threads leave for the engine's thread.
        self._inbox: list[Request] = []
        self._aborts: list[Request] = []
        self._signal = False
        self._closing = False
        self._down: str | None = "the engine has not been started"
        self._live = 0
        self._thread: threading.Thread | None = None
        self._started = threading.Event()
        self.max_tokens = 0
        """Positions that one request may take, prompt and output together; known after :meth:`start`."""
        self._scheduler: Scheduler
        self._runner: Runner
        self._stats = EngineStats()
        self._generated = 0
        self._steps = 0
        self._retry_at = 0

    # From any thread ----------------------------------------------------------------------------------------

    def start(self) -> None:
        pack_products(self._model.modules())
        size = self._options.page_size
        pages = self._kv_tokens() // size
        if pages < 1:
            raise ConfigError(f"kv_tokens holds no page of {size} positions")
        self._scheduler = Scheduler(self._options, pages)
        self.max_tokens = min(self._model.max_positions, pages * size)
        attention = SdpaAttention(self._model.kv, pages, size, device=self._model.device, dtype=self._model.dtype)
        self._runner = Runner(self._model, attention, self._options, -(-self.max_tokens // size), self._source)
        self._snapshot()
        size_gib = pages * size * self._model.kv.bytes(self._model.dtype) / (1 << 30)
        log.info("a KV cache of %d positions, up to %.2f GiB on %s", pages * size, size_gib, self._model.device)
        self._thread = threading.Thread(target=self._main, name="omni-torch-engine", daemon=True)
        self._thread.start()
        self._started.wait()
        if self._down is not None:
            raise StageFailed(self._down)

    def _kv_tokens(self) -> int:
        """Positions that the KV cache holds: as set, else as many as memory allows and requests can use."""
        if self._options.kv_tokens is not None:
            return self._options.kv_tokens
        if self._model.device.type == "cuda":
            free, _ = torch.cuda.mem_get_info(self._model.device)
        else:
            free = memory().available
        fitting = int(free * self._options.kv_memory) // self._model.kv.bytes(self._model.dtype)
        return min(fitting, self._options.max_running * self._model.max_positions)

    def submit(self, request_id: str, prompt: Prompt, params: SamplingParams, sink: Sink) -> Handle:
        """Queue a request.

        Raises:
            BadRequest: an impossible parameter, or more positions than the model or the KV cache holds.
            Busy: the queue is full.
            Unavailable: the engine is not running.
        """
        self._refuse_if_down()
        check_sampling(params)
        request = Request(
            request_id,
            prompt,
            params,
            sink,
            codebooks=self._model.codebooks,
            page_size=self._options.page_size,
        )
        if request.length + params.max_new_tokens > self.max_tokens:
            raise context_error(request.length, params.max_new_tokens, self.max_tokens)
        self._model.check(prompt, params)
        sink.on_room(self._room_appeared)
        with self._wake:
            self._refuse_if_down()
            if self._live >= self._options.max_running + self._options.max_waiting:
                raise Busy("the queue of the engine is full", retry_after=1.0)
            self._live += 1
            self._inbox.append(request)
            self._wake.notify()
        return request

    def _refuse_if_down(self) -> None:
        if self._down is not None or self._closing:
            raise Unavailable(self._down or "the engine is closed")

    @property
    def down(self) -> str | None:
        return self._down

    def abort(self, handle: Handle) -> None:
        if not isinstance(handle, Request):
            raise TypeError("abort takes what submit gave")
        handle.aborted = True
        with self._wake:
            self._aborts.append(handle)
            self._wake.notify()

    def _room_appeared(self) -> None:
        with self._wake:
            self._signal = True
            self._wake.notify()

    def stats(self) -> EngineStats:
        with self._wake:
            return EngineStats(
                **{name: getattr(self._stats, name) for name in EngineStats.__struct_fields__ if name != "waiting"},
                waiting=self._stats.waiting + len(self._inbox),
            )

    def close(self) -> None:
        """Fail what is left with :class:`Unavailable` and end the thread."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        if self._thread is not None:
            self._thread.join()

    # On the engine's thread ---------------------------------------------------------------------------------

    def _main(self) -> None:
        error: OmniError = Unavailable("the engine is closed")
        try:
            device = self._model.device
            with torch.inference_mode(), torch.cuda.device(device) if device.type == "cuda" else nullcontext():
                self._runner.warm(self._options.capture_tokens)
                self._down = None
                self._started.set()
                busy = False
                while self._take(wait=not busy):
                    busy = self._round()
        except Exception as cause:
            log.exception("the engine has failed")
            error = StageFailed(f"the engine has failed: {cause}")
            error.__cause__ = cause
        with self._wake:
            self._down = error.message
            left, self._inbox = self._inbox, []
            self._started.set()
            self._stats.running = self._stats.waiting = self._stats.paused = self._stats.kv_tokens_used = 0
        for request in (*self._scheduler.running, *self._scheduler.waiting, *left):
            if not request.aborted:
                self._tell(request, lambda r: r.sink.fail(error))

    def _take(self, *, wait: bool) -> bool:
        """Take over what other threads left, sleeping until there is something if ``wait``; False: close."""
        with self._wake:
            while wait and not (self._inbox or self._aborts or self._signal or self._closing):
                self._wake.wait()
            if self._closing:
                return False
            added, self._inbox = self._inbox, []
            aborted, self._aborts = self._aborts, []
            self._signal = False
            # Still under the lock: statistics never miss a request between the inbox and its first round.
            for request in added:
                self._scheduler.add(request)
            for request in aborted:
                self._end(request)
            if added or aborted:
                self._snapshot()
        return True

    def _round(self) -> bool:
        """One round; False when nothing can be done before something happens outside."""
        scheduler = self._scheduler
        before = scheduler.preemptions
        for request in (*scheduler.running, *scheduler.waiting):
            self._tell(request, self._ask_room)
        scheduler.admit()
        self._snapshot()
        chunks = scheduler.prefill()
        if chunks:
            self._prefill(chunks)
        joining = scheduler.ready()
        for request in joining:
            self._join(request)
        batch = scheduler.decode()
        if batch:
            self._decode(batch)
        self._snapshot()
        return bool(chunks or joining or batch) or scheduler.preemptions != before

    def _prefill(self, chunks: Sequence[Chunk]) -> None:
        try:
            self._runner.prefill(chunks)
        except Exception as error:  # noqa: BLE001 - becomes the request's error
            self._survive(error)
            if len(chunks) == 1:
                self._fail(chunks[0].request, error)
            else:
                for chunk in chunks:
                    self._prefill([chunk])
            return
        for chunk in chunks:
            self._scheduler.prefilled(chunk)

    def _join(self, request: Request) -> None:
        try:
            self._runner.join(request)
        except Exception as error:  # noqa: BLE001 - becomes the request's error
            self._survive(error)
            self._fail(request, error)
            return
        request.phase = Phase.DECODE

    def _decode(self, batch: Sequence[Request]) -> None:
        try:
            stops, columns = self._runner.decode(batch)
        except Exception as error:  # noqa: BLE001 - becomes the request's error
            self._survive(error)
            self._decode_failed(batch, error)
            return
        self._steps += 1
        scheduler = self._scheduler
        if scheduler.batch_limit < self._options.max_running and self._steps >= self._retry_at:
            scheduler.batch_limit = min(2 * scheduler.batch_limit, self._options.max_running)
            self._retry_at = self._steps + _STEPS_AFTER_SHORTAGE
        for request, stop, column in zip(batch, stops, columns, strict=True):
            request.alone = False
            request.computed = request.length
            self._deliver(request, bool(stop), column)

    def _decode_failed(self, batch: Sequence[Request], error: Exception) -> None:
        """Nobody's step is half done: all start again from their columns, in smaller batches if memory was short,
        else one by one, until the culprit fails alone."""
        if len(batch) == 1:
            self._fail(batch[0], error)
            return
        if _out_of_memory(error):
            self._scheduler.batch_limit = len(batch) // 2
            self._retry_at = self._steps + _STEPS_AFTER_SHORTAGE
            log.warning("out of memory at a batch of %d, from now on at most %d", len(batch), len(batch) // 2)
        for request in batch:
            request.alone = not _out_of_memory(error)
            self._scheduler.preempt(request)

    def _deliver(self, request: Request, stop: bool, column: np.ndarray) -> None:
        step = request.generated
        output = StepOutput(step=step, prompt_tokens=request.prompt_length, cached_tokens=request.cached_tokens)
        if stop:
            output.finish_reason = "stop"
        else:
            request.append(column)
            self._generated += 1
            output.codes = column[1:].copy() if self._model.codebooks else column[:1].copy()
            if step + 1 == request.params.max_new_tokens:
                output.finish_reason = "length"
        if output.finish_reason is not None:
            self._end(request)
        if not request.aborted:
            self._tell(request, lambda r: r.sink.push(output))
            if output.finish_reason is not None:
                self._tell(request, lambda r: r.sink.finish())

    def _fail(self, request: Request, cause: Exception) -> None:
        self._end(request)
        if _out_of_memory(cause):
            error: OmniError = StageFailed("out of memory: the request does not fit beside the model")
        else:
            log.error("request %s has failed", request.request_id, exc_info=cause)
            error = cause if isinstance(cause, OmniError) else StageFailed(f"{type(cause).__name__}: {cause}")
        if not request.aborted:
            self._tell(request, lambda r: r.sink.fail(error))

    def _end(self, request: Request) -> None:
        """Free what a request holds; again is nothing."""
        if request.phase is not Phase.DONE:
            self._scheduler.remove(request)
            with self._wake:
                self._live -= 1

    def _ask_room(self, request: Request) -> None:
        request.has_room = request.sink.room() > 0

    def _tell(self, request: Request, call: Callable[[Request], None]) -> None:
        """Call a request's sink; one that raises loses its request and harms no other."""
        try:
            call(request)
        except Exception:
            log.exception("the sink of request %s has failed", request.request_id)
            request.aborted = True
            self._end(request)

    def _survive(self, error: Exception) -> None:
        """Raise when the device is lost for good: then no later step can succeed."""
        if self._model.device.type == "cuda":
            if _out_of_memory(error):
                torch.cuda.empty_cache()
            torch.cuda.synchronize(self._model.device)

    def _snapshot(self) -> None:
        scheduler = self._scheduler
        paused = scheduler.paused
        with self._wake:
            self._stats = EngineStats(
                running=len(scheduler.running) - paused,
                waiting=len(scheduler.waiting),
                paused=paused,
                kv_tokens_used=scheduler.pool.used * self._options.page_size,
                kv_tokens_total=scheduler.pool.pages * self._options.page_size,
                prefix_hit_tokens_total=scheduler.prefix_hits,
                prompt_tokens_total=scheduler.prompt_tokens,
                generated_tokens_total=self._generated,
                steps_total=self._steps,
                preemptions_total=scheduler.preemptions,
            )


def _out_of_memory(error: Exception) -> bool:
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "can't allocate memory" in str(error)
