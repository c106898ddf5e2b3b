"""CUDA graphs of the decode step, one per bucket of (batch size, pages, candidates)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from omni.engines.torch.attention import Span

_SMALLEST = 16
"""Pages of the smallest bucket."""

StepFunction = Callable[[Tensor, Sequence[Span], int], Tensor]


class _Captured(NamedTuple):
    graph: torch.cuda.CUDAGraph
    rows: Tensor
    output: Tensor


def bucket(value: int, limit: int, smallest: int = 1) -> int:
    """The power of two at or above ``value``, from ``smallest`` on, at most ``limit``."""
    size = smallest
    while size < value:
        size *= 2
    return min(size, limit)


def parts(pages: Sequence[int], limit: int, page_bytes: int, pass_bytes: int) -> list[Span]:
    """Split rows, sorted by pages, into replays; the pages of a part are the bucket that all its rows are padded to.

    A part more reads the weights (``pass_bytes``) once more. Rows that are padded beyond their own bucket instead read
    ``page_bytes`` for every page of padding, in each of three ways: found, laid out, used.
    """
    found: list[Span] = []
    end = len(pages)
    while end:
        size = bucket(pages[end - 1], limit, _SMALLEST)
        padding, first = 0, end
        while first:
            own = bucket(pages[first - 1], limit, _SMALLEST)
            padding += 3 * page_bytes * (size - own)
            if padding > pass_bytes:
                break
            first -= 1
        found.insert(0, (first, end, size))
        end = first
    return found


def _powers(limit: int) -> list[int]:
    """Powers of two below ``limit``, and ``limit``."""
    return [*(1 << i for i in range((limit - 1).bit_length())), limit] if limit else []


class StepGraphs:
    """Captures ``step`` when a bucket is first met and replays it afterwards.

    All buffers that ``step`` reads and writes live outside, at fixed addresses; the only inputs are the rows. A
    capture runs on row ``nobody`` alone, so it changes no request.
    """

    def __init__(self, step: StepFunction, max_rows: int, max_pages: int, device: torch.device) -> None:
        self._step = step
        self._max_rows, self._max_pages = max_rows, max_pages
        self._nobody = max_rows
        self._device = device
        self._graphs: dict[tuple[int, int, int], _Captured] = {}
        self._pool: Any = None

    def run(self, rows: Sequence[int], pages: int, candidates: int) -> Tensor:
        """The step's output for ``rows``, valid until the next call."""
        size = bucket(len(rows), self._max_rows)
        key = (size, bucket(pages, self._max_pages, _SMALLEST), candidates)
        captured = self._graphs.get(key)
        if captured is None:
            captured = self._graphs[key] = self._capture(*key)
        padded = [*rows, *[self._nobody] * (size - len(rows))]
        captured.rows.copy_(torch.tensor(padded))
        captured.graph.replay()
        return captured.output[: len(rows)]

    def warm(self, pages: int, candidates: int) -> None:
        """Capture for all batch sizes with contexts of up to ``pages``."""
        sizes = {bucket(n, self._max_rows) for n in _powers(self._max_rows)}
        lengths = {bucket(n, self._max_pages, _SMALLEST) for n in _powers(min(pages, self._max_pages))}
        # The largest first: the others fit in the memory that it has taken.
        for key in sorted(((s, n, candidates) for s in sizes for n in lengths), reverse=True):
            self._graphs[key] = self._capture(*key)

    def _capture(self, size: int, pages: int, candidates: int) -> _Captured:
        rows = torch.full((size,), self._nobody, device=self._device)
        groups = ((0, size, pages),)
        # Libraries set up their workspaces in the first calls, which may not happen during a capture.
        side = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(side):
            for _ in range(2):
                self._step(rows, groups, candidates)
        torch.cuda.current_stream(self._device).wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        # Other stages may use the device meanwhile, from threads of their own.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            output = self._step(rows, groups, candidates)
        self._pool = self._pool or graph.pool()
        return _Captured(graph, rows, output)
