"""Toy models for the torch engine: text alone, and dual-AR with a depth transformer. Random, tiny, deterministic."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from omni.engines.base import Prompt, SamplingParams, StepOutput
from omni.engines.torch import (
    BlockDims,
    DecoderLayer,
    DepthTransformer,
    KVShape,
    PromptSlice,
    Rope,
    Step,
    StepResult,
    TorchEngine,
    parse_options,
    race,
    standard_filter,
    top_candidates,
)
from omni.errors import BadRequest, OmniError

DIMS = BlockDims(dim=32, heads=4, kv_heads=2, head_dim=8, ffn=48, eps=1e-6, qk_norm=True)
CPU = torch.device("cpu")


def randomise(module: torch.nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        scale = 1.0 if parameter.dim() == 1 else parameter.shape[-1] ** -0.5
        parameter.normal_(0.0, scale, generator=generator)


class ToyText(torch.nn.Module):
    """Text decoding: one code per step, token 0 ends. ``embeds["shift"]`` ``(width,)`` is added to every input;
    with ``extra["poison"]`` a request breaks the step after three codes, with ``extra["endless"]`` nothing ends it."""

    vocabulary = 40
    codebooks = 0
    max_positions = 512
    width = DIMS.dim
    device, dtype = CPU, torch.float32

    def __init__(self) -> None:
        super().__init__()
        self.kv = KVShape(2, DIMS.kv_heads, DIMS.head_dim)
        self.layers = torch.nn.ModuleList(DecoderLayer(DIMS, device=CPU, dtype=torch.float32) for _ in range(2))
        self.embedding = torch.nn.Parameter(torch.empty(self.vocabulary, self.width), requires_grad=False)
        self.head = torch.nn.Parameter(torch.empty(self.vocabulary, self.width), requires_grad=False)
        self.rope = Rope(DIMS.head_dim, 10_000.0, self.max_positions, device=CPU, interleaved=False)
        self.fail: Callable[[str, int], None] = lambda where, rows: None
        randomise(self, 1)
        self.embedding.mul_(6.0)

    def check(self, prompt: Prompt, params: SamplingParams) -> None:
        if np.max(prompt.tokens) >= self.vocabulary:
            raise BadRequest("token out of range", param="prompt")

    def embed(self, part: PromptSlice) -> Tensor:
        shift = part.prompt.embeds.get("shift")
        x = self.embedding[part.tokens]
        return x if shift is None else x + torch.as_tensor(shift)

    def forward(self, x: Tensor, positions: Tensor, attend: Any) -> Tensor:
        self.fail("forward", x.shape[0])
        factors = self.rope.at(positions)
        for index, layer in enumerate(self.layers):
            x = layer(x, self.rope, factors, lambda q, k, v, i=index: attend(i, q, k, v))
        return x

    def new_state(self, rows: int) -> Any:
        return SimpleNamespace(
            shift=torch.zeros(rows, self.width),
            poison=torch.zeros(rows, dtype=torch.bool),
            endless=torch.zeros(rows, dtype=torch.bool),
        )

    def admit(
        self, state: Any, row: int, prompt: Prompt, params: SamplingParams, tokens: Tensor, codes: Tensor
    ) -> None:
        state.shift[row] = torch.as_tensor(prompt.embeds.get("shift", 0.0))
        state.poison[row] = params.extra.get("poison", False)
        state.endless[row] = params.extra.get("endless", False)

    def sample(self, step: Step, stream: int, logits: Tensor) -> Tensor:
        best = logits.argmax(-1)
        if step.candidates == 1:
            return best
        values, ids = top_candidates(logits, step.candidates)
        p = standard_filter(values, step.temperature, step.top_p, step.top_k)
        drawn = ids.gather(1, race(p, step.uniform(stream, ids)).unsqueeze(1)).squeeze(1)
        return torch.where(step.greedy, best, drawn)

    def step(self, hidden: Tensor, step: Step, state: Any) -> StepResult:
        self.fail("step", hidden.shape[0])
        if (state.poison[step.rows] & (step.index >= 3)).any():
            raise RuntimeError("boom")
        token = self.sample(step, 0, hidden @ self.head.t())
        embedding = self.embedding[token] + state.shift[step.rows]
        stop = (token == 0) & ~state.endless[step.rows]
        return StepResult(token, token.new_empty(len(token), 0), stop, embedding)


class ToyDual(ToyText):
    """Dual-AR: 3 codebooks of 16; tokens 20 .. 35 are frames; token 0 ends."""

    codebooks, size, begin = 3, 16, 20

    def __init__(self) -> None:
        super().__init__()
        self.code_embedding = torch.nn.Parameter(torch.empty(3 * self.size, self.width), requires_grad=False)
        self.depth_embedding = torch.nn.Parameter(torch.empty(self.size, self.width), requires_grad=False)
        self.depth_head = torch.nn.Parameter(torch.empty(self.size, self.width), requires_grad=False)
        norm = torch.nn.Parameter(torch.ones(self.width), requires_grad=False)
        rope = Rope(DIMS.head_dim, 10_000.0, self.codebooks, device=CPU)
        self.depth = DepthTransformer([DecoderLayer(DIMS, device=CPU, dtype=torch.float32)], norm, rope)
        randomise(self, 2)
        self.embedding.mul_(6.0)
        self.code_embedding.mul_(3.0)

    def frames(self, tokens: Tensor, codes: Tensor) -> Tensor:
        """``tokens`` ``(n,)``, ``codes`` ``(3, n)``."""
        extra = self.code_embedding[codes.t() + torch.arange(3) * self.size].sum(1)
        is_frame = (tokens >= self.begin) & (tokens < self.begin + self.size)
        return self.embedding[tokens] + torch.where(is_frame.unsqueeze(1), extra, 0.0)

    def embed(self, part: PromptSlice) -> Tensor:
        return self.frames(part.tokens, part.codes)

    def step(self, hidden: Tensor, step: Step, state: Any) -> StepResult:
        self.fail("step", hidden.shape[0])
        legal = torch.cat((torch.arange(self.begin, self.begin + self.size), torch.zeros(1, dtype=torch.long)))
        token = legal[self.sample(step, 0, hidden @ self.head[legal].t())]
        first = (token - self.begin).clamp(0, self.size - 1)
        codes = self.depth.generate(
            hidden,
            first,
            self.codebooks,
            lambda i, code: self.depth_embedding[code],
            lambda i, h: self.sample(step, i, h @ self.depth_head.t()),
        )
        return StepResult(token, codes, token == 0, self.frames(token, codes.t()))


class Collector:
    """A sink that keeps what it gets. ``credit`` steps are taken before it is full; None: never full."""

    def __init__(self, credit: int | None = None) -> None:
        self._lock = threading.Lock()
        self._credit = credit
        self._wake: Callable[[], None] = lambda: None
        self.outputs: list[StepOutput] = []
        self.error: OmniError | None = None
        self.ended = threading.Event()
        self.full = threading.Event()
        self.started = threading.Event()

    def room(self) -> int:
        with self._lock:
            left = 1 << 20 if self._credit is None else self._credit - len(self.outputs)
        if left == 0:
            self.full.set()
        return left

    def push(self, output: StepOutput) -> None:
        assert not self.ended.is_set()
        with self._lock:
            self.outputs.append(output)
            assert self._credit is None or len(self.outputs) <= self._credit
        self.started.set()

    def finish(self) -> None:
        self.ended.set()

    def fail(self, error: OmniError) -> None:
        self.error = error
        self.ended.set()

    def on_room(self, wake: Callable[[], None]) -> None:
        self._wake = wake

    def grant(self, steps: int | None) -> None:
        with self._lock:
            self._credit = None if steps is None else (self._credit or 0) + steps
        self.full.clear()
        self._wake()

    def result(self) -> list[list[int]]:
        assert self.ended.wait(30), "the request did not end"
        if self.error is not None:
            raise self.error
        assert [o.step for o in self.outputs] == list(range(len(self.outputs)))
        assert self.outputs[-1].finish_reason in ("stop", "length")
        assert all(o.finish_reason is None for o in self.outputs[:-1])
        return [o.codes.tolist() for o in self.outputs if o.codes is not None]


@pytest.fixture
def toys() -> SimpleNamespace:
    return SimpleNamespace(Text=ToyText, Dual=ToyDual, Collector=Collector)


@pytest.fixture
def make_engine() -> Iterator[Callable[..., TorchEngine]]:
    """``make_engine(model, **options)``: a started engine, closed at the end of the test."""
    engines: list[TorchEngine] = []

    def make(model: Any, **options: Any) -> TorchEngine:
        options = {"kv_tokens": 2048, "page_size": 4, **options}
        engine = TorchEngine(model, parse_options(options))
        engine.start()
        engines.append(engine)
        return engine

    yield make
    for engine in engines:
        engine.close()


@pytest.fixture
def run(toys: SimpleNamespace) -> Callable[..., list[list[list[int]]]]:
    """``run(engine, jobs)``: submit ``(prompt, params)`` pairs at once, give the codes of each."""

    def run_all(engine: TorchEngine, jobs: list[tuple[Prompt, SamplingParams]]) -> list[list[list[int]]]:
        sinks = [toys.Collector() for _ in jobs]
        for i, ((prompt, params), sink) in enumerate(zip(jobs, sinks, strict=True)):
            engine.submit(f"r{i}", prompt, params, sink)
        return [sink.result() for sink in sinks]

    return run_all


@pytest.fixture
def jobs() -> Callable[..., list[tuple[Prompt, SamplingParams]]]:
    """``jobs(count, dual=..., seed=...)``: random prompts with mixed sampling, ``max_new_tokens`` 30."""

    def make(count: int, *, dual: bool, seed: int = 0, length: int = 30) -> list[tuple[Prompt, SamplingParams]]:
        rng = np.random.default_rng(seed)
        made = []
        for i in range(count):
            tokens = rng.integers(1, ToyText.vocabulary, rng.integers(1, length))
            codes = rng.integers(0, ToyDual.size, (3, len(tokens))) if dual else None
            kind = i % 3
            params = SamplingParams(
                max_new_tokens=int(rng.integers(1, 31)),
                temperature=(0.0, 0.9, 1.2)[kind],
                top_k=(0, 8, 0)[kind],
                top_p=(1.0, 0.9, 0.95)[kind],
                seed=i,
            )
            made.append((Prompt(tokens=tokens, codes=codes), params))
        return made

    return make
