"""The device side: fixed buffers per row, the prefill pass, the decode step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from omni.engines.torch.attention import PagedAttention, Segment, Span
from omni.engines.torch.graphs import StepGraphs, parts
from omni.engines.torch.model import PromptSlice, Step, TorchARModel
from omni.engines.torch.options import TorchOptions
from omni.engines.torch.request import Request
from omni.engines.torch.sampling import UniformSource
from omni.engines.torch.scheduler import Chunk


class Runner:
    """Runs the model for the engine. Row ``max_running`` of every buffer belongs to nobody: padded rows of a
    captured batch read and write there, at position 0 in page 0."""

    def __init__(
        self,
        model: TorchARModel,
        attention: PagedAttention,
        options: TorchOptions,
        max_pages: int,
        source: UniformSource | None,
    ) -> None:
        self._model = model
        self._attention = attention
        self._page_size = options.page_size
        self._max_candidates = options.max_candidates
        self._source = source
        rows = options.max_running + 1

        def buffer(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.zeros(*shape, device=model.device, dtype=dtype)

        self._inputs = buffer(rows, model.width, dtype=model.dtype)
        self._positions = buffer(rows)
        self._index = buffer(rows)
        self._seed = buffer(rows)
        self._temperature = buffer(rows, dtype=torch.float32)
        self._top_p = buffer(rows, dtype=torch.float32)
        self._top_k = buffer(rows)
        self._tables = buffer(rows, max_pages)
        self._filled = [0] * rows
        self._state: Any = model.new_state(rows)
        self._graphs: StepGraphs | None = None
        self._page_bytes = model.kv.bytes(model.dtype) * options.page_size
        self._pass_bytes = sum(p.nbytes for p in model.parameters())
        if options.cuda_graph and model.device.type == "cuda":
            self._graphs = StepGraphs(self._step, options.max_running, max_pages, model.device)

    def warm(self, tokens: int) -> None:
        """Capture what contexts of up to so many positions will need."""
        if self._graphs is not None and tokens:
            self._graphs.warm(-(-tokens // self._page_size), self._max_candidates)

    # Prefill ------------------------------------------------------------------------------------------------

    def _slice(self, request: Request, start: int, stop: int) -> PromptSlice:
        columns = torch.from_numpy(request.columns[start:stop].copy()).to(self._model.device)
        return PromptSlice(request.prompt, start, stop, columns[:, 0], columns[:, 1:].t())

    def prefill(self, chunks: Sequence[Chunk]) -> None:
        """Compute keys and values of all chunks in one pass. Repeating it changes nothing."""
        x = torch.cat([self._model.embed(self._slice(c.request, c.start, c.stop)) for c in chunks])
        positions = torch.cat([torch.arange(c.start, c.stop) for c in chunks]).to(self._model.device)
        segments = [Segment(c.start, c.stop, c.request.pages) for c in chunks]
        self._model.forward(x.to(self._model.dtype), positions, self._attention.prefill(segments))

    def join(self, request: Request) -> None:
        """Fill the request's row: its next decode step computes its last column."""
        row, last = request.row, request.length - 1
        self._inputs[row] = self._model.embed(self._slice(request, last, last + 1))[0]
        self._positions[row] = last
        self._index[row] = request.generated
        self._seed[row] = request.seed
        self._temperature[row] = request.params.temperature
        self._top_p[row] = request.params.top_p
        self._top_k[row] = request.params.top_k
        self._filled[row] = 0
        done = self._slice(request, request.prompt_length, request.length)
        self._model.admit(self._state, row, request.prompt, request.params, done.tokens, done.codes)

    # Decode -------------------------------------------------------------------------------------------------

    def _update_tables(self, batch: Sequence[Request]) -> None:
        changed = [(r.row, i, r.pages[i]) for r in batch for i in range(self._filled[r.row], len(r.pages))]
        if changed:
            rows, columns, pages = torch.tensor(changed).t().to(self._model.device)
            self._tables.index_put_((rows, columns), pages)
            for request in batch:
                self._filled[request.row] = len(request.pages)

    def _candidates(self, batch: Sequence[Request]) -> int:
        """How many of the best entries hold every request's choices (see :class:`Step`)."""
        sampled = [r.params.top_k for r in batch if r.params.temperature > 0 and r.params.top_k != 1]
        if not sampled:
            return 1
        return self._max_candidates if min(sampled) > 0 and max(sampled) <= self._max_candidates else 0

    def decode(self, batch: Sequence[Request]) -> tuple[np.ndarray, np.ndarray]:
        """One step: ``stop`` bool ``(B,)`` and new columns int64 ``(B, 1 + codebooks)`` in the order of ``batch``."""
        self._update_tables(batch)
        candidates = self._candidates(batch)
        pages = [-(-r.length // self._page_size) for r in batch]
        order = sorted(range(len(batch)), key=pages.__getitem__)
        rows, pages = [batch[i].row for i in order], [pages[i] for i in order]
        packed = np.empty((len(batch), 2 + self._model.codebooks), np.int64)
        if self._graphs is None:
            device = self._model.device
            packed[order] = self._step(torch.tensor(rows).to(device), spans(pages), candidates).cpu().numpy()
        else:
            for first, end, size in parts(pages, self._tables.shape[1], self._page_bytes, self._pass_bytes):
                packed[order[first:end]] = self._graphs.run(rows[first:end], size, candidates).cpu().numpy()
        return packed[:, 0].astype(bool), packed[:, 1:]

    def _step(self, rows: Tensor, groups: Sequence[Span], candidates: int) -> Tensor:
        """The whole step on the device, without a look from the host: ``(B, 2 + codebooks)`` of stop, token, codes."""
        positions = self._positions[rows]
        tables = self._tables[rows, : max(pages for _, _, pages in groups)]
        attend = self._attention.decode(tables, positions, groups)
        hidden = self._model.forward(self._inputs[rows], positions, attend)
        step = Step(
            rows=rows,
            seed=self._seed[rows],
            index=self._index[rows],
            temperature=self._temperature[rows],
            top_p=self._top_p[rows],
            top_k=self._top_k[rows],
            candidates=candidates,
            source=self._source,
        )
        result = self._model.step(hidden, step, self._state)
        owned = rows < self._positions.shape[0] - 1
        self._inputs.index_copy_(0, rows, result.embedding.to(self._inputs.dtype))
        self._positions.index_copy_(0, rows, (positions + 1) * owned)
        self._index.index_copy_(0, rows, step.index + 1)
        return torch.cat((result.stop.long().unsqueeze(1), result.tokens.unsqueeze(1), result.codes), 1)


def spans(pages: Sequence[int]) -> list[Span]:
    """Split rows, sorted by pages, so that no row is padded to more than twice its own context."""
    found: list[Span] = []
    first = 0
    for row in range(1, len(pages) + 1):
        if row == len(pages) or pages[row] > 2 * pages[first]:
            found.append((first, row, pages[row - 1]))
            first = row
    return found
