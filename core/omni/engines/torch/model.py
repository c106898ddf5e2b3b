"""What the torch engine needs of a model. It carries a dual-AR speech model and plain text decoding alike.

One *position* of a sequence is a column: a token id and, for models with ``codebooks`` > 0, one value per
codebook. The engine keeps columns, pages and batches; what a column means is the model's business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from omni.engines.base import Prompt, SamplingParams
from omni.engines.torch.sampling import UniformSource, counter_key, keyed_uniform

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""``attend(layer, q, k, v)``: keep this pass's ``k`` and ``v`` ``(N, kv_heads, head_dim)`` and let ``q``
``(N, heads, head_dim)`` attend to its own sequence up to itself; gives ``(N, heads * head_dim)``."""


@dataclass(frozen=True)
class KVShape:
    """What one position costs: ``2 * layers * kv_heads * head_dim`` values in the model's dtype."""

    layers: int
    kv_heads: int
    head_dim: int

    def bytes(self, dtype: torch.dtype) -> int:
        """Of one position."""
        return 2 * self.layers * self.kv_heads * self.head_dim * dtype.itemsize


@dataclass(frozen=True)
class PromptSlice:
    """Columns ``start`` to ``stop`` of a sequence: the prompt first, generated columns after it.

    ``tokens`` int64 ``(n,)`` and ``codes`` int64 ``(codebooks, n)`` are on the model's device.
    """

    prompt: Prompt
    start: int
    stop: int
    tokens: Tensor
    codes: Tensor


@dataclass(frozen=True)
class Step:
    """The sampling side of one decode step for ``B`` requests; everything is a tensor of shape ``(B,)`` on the
    model's device, so that the step can be captured in a CUDA graph.

    ``rows`` are the requests' rows in the model's state, ``index`` the number of codes each has got so far.
    ``candidates`` is a plain number, fixed per capture: 1 when all are greedy, 0 when the whole vocabulary must be
    sorted, else how many of the best entries hold every ``top_k`` of the batch.
    """

    rows: Tensor
    seed: Tensor
    index: Tensor
    temperature: Tensor
    top_p: Tensor
    top_k: Tensor
    candidates: int
    source: UniformSource | None = None
    """Replaces the numbers of :meth:`uniform`; for tests."""

    @cached_property
    def greedy(self) -> Tensor:
        """Which requests take the best entry in every codebook, bool ``(B,)``."""
        return (self.temperature <= 0) | (self.top_k == 1)

    def uniform(self, stream: int, ids: Tensor) -> Tensor:
        """One number in (0, 1) per entry of ``ids`` ``(B, K)``, which depends on the request's seed, its step,
        ``stream`` (one per codebook) and the id alone: neither on the batch nor on the order."""
        if self.source is not None:
            return self.source(self.seed, self.index, stream, ids)
        return keyed_uniform(self._key, stream, ids)

    @cached_property
    def _key(self) -> Tensor:
        return counter_key(self.seed, self.index)


class StepResult(NamedTuple):
    """``tokens`` int64 ``(B,)``; ``codes`` int64 ``(B, codebooks)``: together the column that follows;
    ``stop`` bool ``(B,)``; ``embedding`` ``(B, width)``: the input of the next step."""

    tokens: Tensor
    codes: Tensor
    stop: Tensor
    embedding: Tensor


class TorchARModel(Protocol):
    """A model for the torch engine. Every method but ``check`` runs on the engine's thread in inference mode."""

    device: torch.device
    dtype: torch.dtype
    width: int
    kv: KVShape
    codebooks: int
    """Rows of ``Prompt.codes``; 0 for models of text alone, whose step gives one code: the token."""
    max_positions: int

    def parameters(self) -> Iterator[torch.nn.Parameter]:
        """What a step reads; a model is an ``nn.Module``."""

    def modules(self) -> Iterator[torch.nn.Module]:
        """Its parts; weights that they name in ``products`` may be packed when the engine starts."""

    def check(self, prompt: Prompt, params: SamplingParams) -> None:
        """Raise :class:`omni.errors.BadRequest` for ids out of range and parameters without meaning here."""

    def embed(self, part: PromptSlice) -> Tensor:
        """Input embeddings ``(n, width)``; for generated columns the same as :meth:`step` gave."""

    def forward(self, x: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """``(N, width)`` inputs at int64 ``(N,)`` positions to hidden states ``(N, width)``."""

    def new_state(self, rows: int) -> Any:
        """Buffers that the model keeps per running request, ``rows`` of them."""

    def admit(
        self, state: Any, row: int, prompt: Prompt, params: SamplingParams, tokens: Tensor, codes: Tensor
    ) -> None:
        """Set ``row`` of the state for a request that has generated ``tokens`` ``(n,)`` and ``codes``
        ``(codebooks, n)`` so far: the same contents as after those steps."""

    def step(self, hidden: Tensor, step: Step, state: Any) -> StepResult:
        """Hidden states ``(B, width)`` to this step's codes. No host synchronisation: no ``.item()``, no
        ``.tolist()``, no shape that depends on data."""
