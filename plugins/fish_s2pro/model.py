"""The dual autoregressive model for the torch engine: one position per text token or frame, codes by a depth model."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fish_s2pro.config import FishConfig
from fish_s2pro.sampling import RAS_WINDOW, Draw, Filter, repetition_aware
from omni.engines.base import Prompt, SamplingParams
from omni.engines.torch import (
    Attend,
    DecoderLayer,
    DepthTransformer,
    LayerStack,
    PromptSlice,
    Rope,
    StackFactory,
    Step,
    StepResult,
    linear,
    weight,
)
from omni.errors import BadRequest

_HEAD_MULTIPLE = 8


@dataclass
class DualState:
    """``window`` int64 ``(rows, RAS_WINDOW)``: the last tokens of each request, but for its first one."""

    window: Tensor


def check_prompt(config: FishConfig, prompt: Prompt, params: SamplingParams) -> None:
    """Raise :class:`BadRequest` for ids and codes out of range, and for parameters that have no meaning here."""
    tokens = torch.as_tensor(prompt.tokens)
    if not (int(tokens.min()) >= 0 and int(tokens.max()) < config.text.vocab_size):
        raise BadRequest(f"token ids must be 0 to {config.text.vocab_size - 1}", param="prompt")
    if prompt.codes is not None:
        codes = torch.as_tensor(prompt.codes)[:, config.is_frame(tokens)]
        if codes.numel() and not (int(codes.min()) >= 0 and int(codes.max()) < config.codebook_size):
            raise BadRequest(f"codes must be 0 to {config.codebook_size - 1}", param="codes")
    if params.repetition_penalty != 1.0:
        raise BadRequest("this model has no repetition penalty", param="repetition_penalty")
    if params.extra:
        raise BadRequest(f"unknown parameter {next(iter(params.extra))}", param=next(iter(params.extra)))


class DualAR(nn.Module):
    """Slow AR with a head cut to the rows that can be sampled, fast AR over the codebooks of a frame.

    See :class:`omni.engines.torch.TorchARModel`. Weights are uninitialised until :func:`fish_s2pro.loader.load_ar`
    or :meth:`randomise` fills them. ``make_stack`` makes the layers of the slow AR.
    """

    products = ("head", "project", "fast_head")

    def __init__(
        self,
        config: FishConfig,
        *,
        device: torch.device,
        dtype: torch.dtype,
        make_stack: StackFactory = LayerStack,
    ) -> None:
        super().__init__()
        self.config = config
        self.device, self.dtype = device, dtype
        slow, fast = config.slow, config.fast
        self.width = slow.dim
        self.kv = config.stack.kv
        self.codebooks = config.codebooks
        self.max_positions = config.text.max_seq_len
        self._semantic = config.semantic_end - config.semantic_begin + 1

        def make(*shape: int) -> nn.Parameter:
            return weight(*shape, device=device, dtype=dtype)

        self.embeddings = make(config.text.vocab_size, slow.dim)
        self.code_embeddings = make(config.codebooks * config.codebook_size, slow.dim)
        self.stack = make_stack(config.stack, device=device, dtype=dtype)
        # Sampled are semantic tokens and the end token; zero rows fill up to a size the kernels like.
        rows = -(-(self._semantic + 1) // _HEAD_MULTIPLE) * _HEAD_MULTIPLE
        self.head = make(rows, slow.dim)
        self.project = make(fast.dim, slow.dim) if fast.dim != slow.dim else None
        self.project_bias = make(fast.dim) if fast.dim != slow.dim else None
        self.fast_embeddings = make(config.codebook_size, fast.dim)
        self.fast_head = make(config.codebook_size, fast.dim)
        self.depth = DepthTransformer(
            [DecoderLayer(fast, device=device, dtype=dtype) for _ in range(config.depth.n_layer)],
            make(fast.dim),
            Rope(fast.head_dim, config.text.rope_base, config.codebooks, device=device, rounding=torch.bfloat16),
        )
        semantic = torch.arange(config.semantic_begin, config.semantic_end + 1)
        self.legal = torch.cat((semantic, torch.tensor([config.end_id]))).to(device)
        self._offsets = (torch.arange(config.codebooks) * config.codebook_size).to(device)

    def cut_head(self, source: Tensor | None = None) -> None:
        """Copy the rows that can be sampled from ``source`` ``(vocabulary, dim)``, by default the tied embedding."""
        source = self.embeddings if source is None else source
        self.head.zero_()
        self.head[: len(self.legal)] = source[self.legal]

    def randomise(self, seed: int) -> None:
        """Random weights of a scale at which a deep model neither dies nor explodes."""
        generator = torch.Generator(self.device).manual_seed(seed)

        def draw(*parameters: nn.Parameter) -> None:
            for parameter in parameters:
                if parameter.dim() == 1:
                    parameter.fill_(1.0)
                else:
                    parameter.normal_(0.0, parameter.shape[1] ** -0.5, generator=generator)

        # In an order that does not depend on what the stack is made of.
        draw(*(p for name, p in self.named_parameters() if not name.startswith("stack.")))
        self.stack.norm.fill_(1.0)
        self.stack.fill(lambda _, layer: draw(*layer.parameters()))
        if self.project_bias is not None:
            self.project_bias.zero_()
        self.cut_head()

    # The engine's protocol ----------------------------------------------------------------------------------

    def check(self, prompt: Prompt, params: SamplingParams) -> None:
        check_prompt(self.config, prompt, params)

    def _embed(self, tokens: Tensor, codes: Tensor) -> Tensor:
        """``tokens`` ``(n,)`` and ``codes`` ``(codebooks, n)`` to ``(n, dim)``: a frame is the scaled sum of its token
        and all its codes, a text token is itself, whatever its codes say."""
        frame = self.config.is_frame(tokens)
        rows = codes.t() * frame.unsqueeze(1) + self._offsets
        x = self.embeddings[tokens]
        total = (x + self.code_embeddings[rows].sum(1)) / math.sqrt(self.codebooks + 1)
        return torch.where(frame.unsqueeze(1), total, x)

    def embed(self, part: PromptSlice) -> Tensor:
        return self._embed(part.tokens, part.codes)

    def forward(self, x: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Normed hidden states: what both the head and the fast AR take."""
        return self.stack(x, positions, attend)

    def new_state(self, rows: int) -> DualState:
        return DualState(torch.zeros(rows, RAS_WINDOW, dtype=torch.int64, device=self.device))

    def admit(
        self,
        state: DualState,
        row: int,
        prompt: Prompt,
        params: SamplingParams,
        tokens: Tensor,
        codes: Tensor,
    ) -> None:
        recent = tokens[1:][-RAS_WINDOW:]
        state.window[row] = 0
        if len(recent):
            state.window[row, -len(recent) :] = recent

    def logits(self, hidden: Tensor) -> Tensor:
        """Float32 logits ``(B, semantic + 1)`` of the legal tokens, the end token last."""
        return linear(hidden, self.head)[:, : len(self.legal)].float()

    def condition(self, hidden: Tensor) -> Tensor:
        """What the fast AR starts from ``(B, fast dim)``."""
        return hidden if self.project is None else linear(hidden, self.project, self.project_bias)

    def step(self, hidden: Tensor, step: Step, state: DualState) -> StepResult:
        window = state.window[step.rows]
        draw = Draw(self.logits(hidden), step, self.legal)
        rule = Filter(step.temperature, step.top_p, step.top_k)
        token = repetition_aware(draw, step, rule, window, normal=0, high=self.codebooks)
        shifted = torch.cat((window[:, 1:], token.unsqueeze(1)), 1)
        state.window.index_copy_(0, step.rows, torch.where((step.index > 0).unsqueeze(1), shifted, window))
        first = (token - self.config.semantic_begin).clamp(0, self.config.codebook_size - 1)
        codes = self.depth.generate(
            self.condition(hidden),
            first,
            self.codebooks,
            lambda _, code: self.fast_embeddings[code],
            lambda position, h: Draw(linear(h, self.fast_head).float(), step).pick(position, rule),
        )
        return StepResult(token, codes, token == self.config.end_id, self._embed(token, codes.t()))
