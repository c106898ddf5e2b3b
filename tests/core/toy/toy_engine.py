"""A deterministic AR engine and model: the smallest thing that keeps every promise of ``omni.engines.base``.

One thread batches requests step by step. A request takes ``prompt + max_new_tokens`` tokens of the KV budget when it
is admitted and gives them back when it ends, is aborted or fails. A sink without room leaves its request out of steps.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from omni import BadRequest, StageFailed
from omni.engines.base import EngineStats, Prompt, SamplingParams, Sink, StepOutput
from omni.errors import ConfigError


class ToyOptions(BaseModel):
    model_config = ConfigDict(extra="forbid")

    max_running: int = Field(8, ge=1)
    kv_tokens: int = Field(20_000, ge=1)


@dataclass(eq=False)
class Row:
    """One request; its own ``Handle``."""

    request_id: str
    prompt: Prompt
    params: SamplingParams
    sink: Sink
    codes: list[int] = field(default_factory=list)
    reserved: int = 0

    @property
    def step(self) -> int:
        return len(self.codes)


class ToyModel:
    """Step ``s`` gives ``tokens[s]`` moved by noise that depends on the seed and the step alone; then it stops."""

    def forward(self, rows: Sequence[Row]) -> list[int | None]:
        """A code in [0, 256) per row, None where the row's text is at its end."""
        return [self._next(row) for row in rows]

    def _next(self, row: Row) -> int | None:
        tokens = row.prompt.tokens
        if row.step >= len(tokens):
            return None
        noise = 0
        if row.params.temperature > 0:
            digest = blake2b(f"{row.params.seed}:{row.step}".encode(), digest_size=2).digest()
            noise = int(int.from_bytes(digest) / 65536 * 40 * row.params.temperature)
        return (int(tokens[row.step]) + noise) % 256


class ToyEngine:
    """See the module. ``on_step`` is called before every step with the batch: tests watch or block it."""

    def __init__(self, model: Any, options: Mapping[str, Any]) -> None:
        self._model = model
        self._options = ToyOptions.model_validate(dict(options))
        self.max_tokens = self._options.kv_tokens
        self._lock = threading.Condition()
        self._waiting: list[Row] = []
        self._running: list[Row] = []
        self._aborted: set[Row] = set()
        self._closing = False
        self._stats = EngineStats(kv_tokens_total=self._options.kv_tokens)
        self._thread = threading.Thread(target=self._main, name="toy-engine", daemon=True)
        self.down: str | None = None
        self.on_step: Callable[[Sequence[Row]], None] = lambda rows: None

    def start(self) -> None:
        if self._options.max_running > 1024:
            raise ConfigError("max_running: at most 1024")
        self._thread.start()

    def submit(self, request_id: str, prompt: Prompt, params: SamplingParams, sink: Sink) -> Row:
        row = Row(request_id, prompt, params, sink, reserved=len(prompt.tokens) + params.max_new_tokens)
        if row.reserved > self._options.kv_tokens:
            raise BadRequest(f"the prompt needs {row.reserved} tokens, the limit is {self._options.kv_tokens}")
        sink.on_room(self._wake)
        with self._lock:
            self._waiting.append(row)
            self._stats.prompt_tokens_total += len(prompt.tokens)
            self._lock.notify()
        return row

    def abort(self, handle: Row) -> None:
        with self._lock:
            if handle in self._waiting:
                self._waiting.remove(handle)
            elif handle in self._running:
                self._aborted.add(handle)
                self._lock.notify()

    def stats(self) -> EngineStats:
        with self._lock:
            stats = EngineStats(**{name: getattr(self._stats, name) for name in self._stats.__struct_fields__})
            stats.waiting = len(self._waiting)
            stats.paused = sum(1 for row in self._running if row.sink.room() <= 0)
            stats.running = len(self._running) - stats.paused
            stats.kv_tokens_used = self._used()
            return stats

    def close(self) -> None:
        with self._lock:
            self._closing = True
            self._lock.notify()
        if self._thread.is_alive():
            self._thread.join(5.0)

    def _used(self) -> int:
        return sum(row.reserved for row in self._running)

    def _wake(self) -> None:
        with self._lock:
            self._lock.notify()

    def _main(self) -> None:
        while True:
            with self._lock:
                rows = self._admit()
                while not rows and not self._closing:
                    self._lock.wait()
                    rows = self._admit()
                if self._closing:
                    return
            self.on_step(rows)
            self._step(rows)

    def _admit(self) -> list[Row]:
        """With the lock held: drop what was aborted, take what fits, give the rows that can step."""
        self._running = [row for row in self._running if row not in self._aborted]
        self._aborted.clear()
        while self._waiting and len(self._running) < self._options.max_running:
            if self._used() + self._waiting[0].reserved > self._options.kv_tokens:
                break
            self._running.append(self._waiting.pop(0))
        return [row for row in self._running if row.sink.room() > 0]

    def _step(self, rows: list[Row]) -> None:
        ended = [row for row, code in zip(rows, self._forward(rows), strict=True) if not self._deliver(row, code)]
        with self._lock:
            self._stats.steps_total += 1
            self._running = [row for row in self._running if row not in ended]

    def _forward(self, rows: Sequence[Row]) -> list[Any]:
        """Codes or, for the rows at fault alone, errors."""
        try:
            return list(self._model.forward(rows))
        except Exception as error:  # noqa: BLE001 - handed to the request as a typed error
            if len(rows) == 1:
                return [StageFailed(f"the model failed: {type(error).__name__}: {error}")]
            return [self._forward([row])[0] for row in rows]

    def _deliver(self, row: Row, code: Any) -> bool:
        """Hand a step to its sink; whether the row goes on."""
        with self._lock:
            if row in self._aborted:
                return True
        if isinstance(code, StageFailed):
            row.sink.fail(code)
            return False
        step, prompt_tokens = row.step, len(row.prompt.tokens)
        if code is None:
            row.sink.push(StepOutput(step=step, finish_reason="stop", prompt_tokens=prompt_tokens))
            row.sink.finish()
            return False
        row.codes.append(code)
        self._stats.generated_tokens_total += 1
        full = row.step >= row.params.max_new_tokens
        reason = "length" if full else None
        row.sink.push(StepOutput(step=step, codes=np.array([code]), finish_reason=reason, prompt_tokens=prompt_tokens))
        if full:
            row.sink.finish()
        return not full


def create(model: Any, options: Mapping[str, Any]) -> ToyEngine:
    """What the hook ``omni_engines`` names."""
    return ToyEngine(model, options)
