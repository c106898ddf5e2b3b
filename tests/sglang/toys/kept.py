"""The engine ``sglang`` kept alive from one pipeline to the next: the conformance kit loads a recipe many times, and
SGLang takes its time to start. What the pipelines talk to is the real engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omni import hookimpl
from omni.engines.base import EngineStats, Handle, ModelSource, Prompt, SamplingParams, Sink
from omni.engines.sglang import create_engine
from omni.engines.sglang.engine import SGLangEngine

running: dict[str, SGLangEngine] = {}


def engine(model: ModelSource, options: Mapping[str, Any]) -> SGLangEngine:
    """The one of this model and these options; started when there is none."""
    key = repr((model, sorted(options.items())))
    if key not in running:
        running[key] = create_engine(model, options)
        running[key].start()
    return running[key]


class Kept:
    takes_source = True

    def __call__(self, model: ModelSource, options: Mapping[str, Any]) -> KeptEngine:
        return KeptEngine(model, options)


class KeptEngine:
    def __init__(self, model: ModelSource, options: Mapping[str, Any]) -> None:
        self._model, self._options = model, options
        self._engine: SGLangEngine

    def start(self) -> None:
        self._engine = engine(self._model, self._options)
        self.max_tokens = self._engine.max_tokens

    def submit(self, request_id: str, prompt: Prompt, params: SamplingParams, sink: Sink) -> Handle:
        return self._engine.submit(request_id, prompt, params, sink)

    def abort(self, handle: Handle) -> None:
        self._engine.abort(handle)

    @property
    def down(self) -> str | None:
        return self._engine.down

    def stats(self) -> EngineStats:
        return self._engine.stats()

    def close(self) -> None:
        """The tests close what runs."""


create = Kept()


@hookimpl
def omni_engines() -> Mapping[str, str]:
    return {"kept": "kept:create"}
