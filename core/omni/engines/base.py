"""The one interface behind which every AR engine stands.

An engine owns the loop: it batches requests step by step, keeps their KV cache, and pushes each step's
codes into the request's :class:`Sink`. A sink without room pauses its own request and no other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import msgspec

from omni.errors import OmniError

if TYPE_CHECKING:
    import torch

    from omni.engines.torch import StackDims, StackFactory, TorchARModel


class Prompt(msgspec.Struct, kw_only=True):
    """What an AR model is fed. ``tokens``: int64 array ``(T,)`` of text ids; ``codes``: int64 ``(C, T)`` of codebook
    values, zero where a position is not an audio frame, or None for text-only models; ``embeds``: model-defined
    arrays that replace embeddings at some positions (audio encoder output), by name.

    ``salt`` and the content of ``embeds`` are mixed into the prefix keys, since tokens and codes do not show them. The
    first ``plain`` positions depend on neither: an engine may share them with prompts that differ in both.
    """

    tokens: Any
    codes: Any | None = None
    embeds: dict[str, Any] = msgspec.field(default_factory=dict)
    salt: bytes = b""
    plain: int = 0


class SamplingParams(msgspec.Struct, kw_only=True, frozen=True):
    """``temperature`` 0 (or ``top_k`` 1) is greedy for every codebook. ``seed`` None: drawn by the engine.
    ``extra`` holds what only one model understands."""

    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    repetition_penalty: float = 1.0
    seed: int | None = None
    extra: dict[str, Any] = msgspec.field(default_factory=dict)


class StepOutput(msgspec.Struct, kw_only=True):
    """What one step gave one request: ``codes`` int64 ``(C,)`` (C = 1 for text), None on a step that only ends.
    ``finish_reason``: None while it runs, then ``stop`` (end token) or ``length``."""

    step: int
    codes: Any | None = None
    finish_reason: str | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0


class Sink(Protocol):
    """Where an engine puts a request's output; every method may be called from the engine's thread."""

    def room(self) -> int:
        """How many more steps the consumer takes now; 0 pauses the request."""

    def push(self, output: StepOutput) -> None: ...

    def finish(self) -> None:
        """No more output; the last ``push`` carried the finish reason."""

    def fail(self, error: OmniError) -> None: ...

    def on_room(self, wake: Any) -> None:
        """``wake()`` is called (from any thread) when room appears after there was none."""


class Handle(Protocol):
    """A submitted request, as the engine names it."""

    request_id: str


class EngineStats(msgspec.Struct, kw_only=True):
    """A snapshot; counts since start where the name says total."""

    running: int = 0
    waiting: int = 0
    paused: int = 0
    kv_tokens_used: int = 0
    kv_tokens_total: int = 0
    prefix_hit_tokens_total: int = 0
    prompt_tokens_total: int = 0
    generated_tokens_total: int = 0
    steps_total: int = 0
    preemptions_total: int = 0


class ARModel(Protocol):
    """Marker for what an engine runs; each engine states the protocol that it needs of it."""


class ModelShape(NamedTuple):
    """What an engine must know of a model before it is built."""

    codebooks: int
    max_positions: int
    stack: StackDims


class ModelSource(msgspec.Struct, kw_only=True, frozen=True):
    """A model as what it takes to build it, for engines that build it in processes of their own.

    A plugin subclasses it in an importable module, with fields that fit in JSON: the other process gets the name of the
    class and the fields. ``device`` is a torch device, ``dtype`` the name of one of torch's types.
    """

    device: str
    dtype: str

    def shape(self) -> ModelShape:
        """Without reading weights. Raises :class:`omni.errors.WeightsError`."""
        raise NotImplementedError

    def check(self, prompt: Prompt, params: SamplingParams) -> None:
        """As the model's own ``check``, without the model."""
        raise NotImplementedError

    def build(self, make_stack: StackFactory, *, device: torch.device) -> TorchARModel:
        """The model with its weights, its slow transformer made by ``make_stack``."""
        raise NotImplementedError


@runtime_checkable
class Engine(Protocol):
    """Continuous batching behind submit and abort; thread-safe."""

    max_tokens: int
    """Positions that one request may take, prompt and output together; known after :meth:`start`."""

    @property
    def down(self) -> str | None:
        """Why no request is taken; None while the engine runs."""

    def start(self) -> None:
        """Allocate and start the engine's thread or process. Raises ConfigError for impossible options."""

    def submit(self, request_id: str, prompt: Prompt, params: SamplingParams, sink: Sink) -> Handle: ...

    def abort(self, handle: Handle) -> None:
        """End a request without further output; its slots and pages are free when this step is over. Does not block;
        a handle that has finished is ignored."""

    def stats(self) -> EngineStats: ...

    def close(self) -> None:
        """Stop and free everything; also called after ``start`` has failed."""


class EngineFactory(Protocol):
    """What the hook ``omni_engines`` gives, by name, as ``module:callable``.

    ``model`` is what the stage's ``model()`` gives. A factory whose attribute ``takes_source`` is true gets the stage's
    ``source()`` instead, and the model is not built here.
    """

    def __call__(self, model: Any, options: Mapping[str, Any]) -> Engine: ...
