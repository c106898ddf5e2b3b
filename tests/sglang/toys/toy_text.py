"""A text model as a speech recogniser has one: no codebooks, embeddings in the prompt, biases, plain rotary pairs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from omni.engines.base import ModelShape, ModelSource, Prompt, SamplingParams
from omni.engines.torch import (
    BlockDims,
    PromptSlice,
    StackDims,
    StackFactory,
    Step,
    StepResult,
    race,
    standard_filter,
    top_candidates,
    weight,
)
from omni.errors import BadRequest

BLOCK = BlockDims(dim=32, heads=4, kv_heads=2, head_dim=8, ffn=48, eps=1e-5, qkv_bias=True, o_bias=True)
STACK = StackDims(BLOCK, 2, 256, 10_000.0, rope_interleaved=False)
VOCABULARY = 40
AUDIO = 39
"""The token whose embeddings come with the prompt."""


class ToySource(ModelSource, kw_only=True, frozen=True):
    seed: int

    def shape(self) -> ModelShape:
        return ModelShape(0, STACK.max_positions, STACK)

    def check(self, prompt: Prompt, params: SamplingParams) -> None:
        if max(prompt.tokens) >= VOCABULARY:
            raise BadRequest("no such token", param="prompt")

    def build(self, make_stack: StackFactory, *, device: torch.device) -> ToyText:
        return ToyText(self.seed, make_stack, device)


class ToyText(torch.nn.Module):
    """``embeds["audio"]`` ``(n, width)`` stands at the places of token ``AUDIO``; token 0 ends. A request with
    ``extra["poison"]`` breaks the model."""

    codebooks = 0
    width = BLOCK.dim
    max_positions = STACK.max_positions
    kv = STACK.kv
    dtype = torch.float32

    def __init__(self, seed: int, make_stack: StackFactory, device: torch.device) -> None:
        super().__init__()
        self.device = device
        generator = torch.Generator(device).manual_seed(seed)

        def draw(parameter: Tensor) -> Tensor:
            return parameter.normal_(0.0, parameter.shape[-1] ** -0.5, generator=generator)

        self.embedding = draw(weight(VOCABULARY, BLOCK.dim, device=device, dtype=self.dtype)).mul_(6.0)
        self.head = draw(weight(VOCABULARY, BLOCK.dim, device=device, dtype=self.dtype))
        self.stack = make_stack(STACK, device=device, dtype=self.dtype)
        draw(self.stack.norm).abs_()
        self.stack.fill(lambda _, layer: [draw(p) for p in layer.parameters()])

    def check(self, prompt: Prompt, params: SamplingParams) -> None:
        return None

    def embed(self, part: PromptSlice) -> Tensor:
        x = self.embedding[part.tokens]
        places = torch.as_tensor(part.prompt.tokens).eq(AUDIO).nonzero().squeeze(1)
        for row, place in enumerate(places.tolist()):
            if part.start <= place < part.stop:
                x[place - part.start] = torch.as_tensor(part.prompt.embeds["audio"])[row].to(x)
        return x

    def forward(self, x: Tensor, positions: Tensor, attend: Any) -> Tensor:
        return self.stack(x, positions, attend)

    def new_state(self, rows: int) -> Any:
        return SimpleNamespace(poison=torch.zeros(rows, dtype=torch.bool))

    def admit(
        self, state: Any, row: int, prompt: Prompt, params: SamplingParams, tokens: Tensor, codes: Tensor
    ) -> None:
        state.poison[row] = params.extra.get("poison", False)

    def step(self, hidden: Tensor, step: Step, state: Any) -> StepResult:
        if state.poison[step.rows].any():
            raise RuntimeError("boom")
        logits = hidden @ self.head.t()
        token = logits.argmax(-1)
        if step.candidates != 1:
            values, ids = top_candidates(logits, step.candidates)
            p = standard_filter(values, step.temperature, step.top_p, step.top_k)
            drawn = ids.gather(1, race(p, step.uniform(0, ids)).unsqueeze(1)).squeeze(1)
            token = torch.where(step.greedy, token, drawn)
        return StepResult(token, token.new_empty(len(token), 0), token == 0, self.embedding[token])
