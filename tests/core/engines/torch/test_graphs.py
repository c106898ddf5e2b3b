"""How a batch is split into replays of CUDA graphs, and which are captured at start."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from omni.engines.torch.graphs import StepGraphs, parts

LIMIT = 512


@pytest.mark.parametrize(
    ("pages", "pass_bytes", "expected"),
    [
        ([1, 2, 16], 0, [(0, 3, 16)]),
        ([1, 2, 17], 0, [(0, 2, 16), (2, 3, 32)]),
        ([1, 2, 17], 96, [(0, 3, 32)]),
        ([1, 2, 17], 95, [(0, 1, 16), (1, 3, 32)]),
        ([5, 40, 400], 10**9, [(0, 3, 512)]),
        ([5, 40, 400], 100, [(0, 1, 16), (1, 2, 64), (2, 3, 512)]),
        ([500], 0, [(0, 1, 512)]),
    ],
)
def test_one_long_context_does_not_pad_the_others(pages, pass_bytes, expected) -> None:
    assert parts(pages, LIMIT, 1, pass_bytes) == expected


class EagerGraphs:
    """Replays nothing: runs the step on what a replay would get."""

    def __init__(self, step: Any) -> None:
        self._step = step
        self.sizes: list[tuple[int, int]] = []

    def warm(self, pages: int, candidates: int) -> None:
        pass

    def run(self, rows: list[int], pages: int, candidates: int) -> torch.Tensor:
        self.sizes.append((len(rows), pages))
        return self._step(torch.tensor(rows), ((0, len(rows), pages),), candidates)


def test_a_batch_in_parts_gives_what_it_gives_whole(toys, make_engine, run, jobs) -> None:
    work = [*jobs(6, dual=True, length=20), *jobs(2, dual=True, seed=1, length=400)]
    expected = run(make_engine(toys.Dual()), work)
    engine = make_engine(toys.Dual())
    runner = engine._runner
    runner._graphs = graphs = EagerGraphs(runner._step)
    runner._pass_bytes = 0
    assert run(engine, work) == expected
    assert len({pages for _, pages in graphs.sizes}) > 1


def test_what_is_captured_at_start(monkeypatch: pytest.MonkeyPatch) -> None:
    keys: list[tuple[int, int, int]] = []
    monkeypatch.setattr(StepGraphs, "_capture", lambda self, *key: keys.append(key))
    StepGraphs(lambda *_: torch.empty(0), 6, 100, torch.device("cpu")).warm(40, 64)
    assert keys == [(size, pages, 64) for size in (6, 4, 2, 1) for pages in (64, 32, 16)]
