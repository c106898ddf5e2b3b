"""The language model for the torch engine: text tokens, some of them replaced by what the audio encoder gave."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from omni.engines.base import Prompt, SamplingParams
from omni.engines.torch import (
    Attend,
    LayerStack,
    PromptSlice,
    StackFactory,
    Step,
    StepResult,
    linear,
    race,
    standard_filter,
    top_candidates,
    weight,
)
from omni.errors import BadRequest
from qwen3_asr.config import AsrConfig, TextSection

AUDIO = "audio"
"""Name of the embeddings in a prompt: ``(n, width)``, for its ``n`` audio positions in their order."""


def check_prompt(config: AsrConfig, prompt: Prompt, params: SamplingParams) -> None:
    """Raise :class:`BadRequest` for ids out of range, for embeddings that do not fit the tokens, and for parameters
    that have no meaning here."""
    tokens = torch.as_tensor(prompt.tokens)
    if not (int(tokens.min()) >= 0 and int(tokens.max()) < config.text.vocab_size):
        raise BadRequest(f"token ids must be 0 to {config.text.vocab_size - 1}", param="prompt")
    count = int((tokens == config.audio_pad_id).sum())
    shape = tuple(prompt.embeds[AUDIO].shape) if AUDIO in prompt.embeds else (0, config.text.hidden_size)
    if shape != (count, config.text.hidden_size):
        raise BadRequest(
            f"the prompt has {count} audio positions of {config.text.hidden_size}, its embeddings are {list(shape)}",
            param="prompt",
        )
    unknown = [name for name in prompt.embeds if name != AUDIO]
    if unknown:
        raise BadRequest(f"this model takes no embeddings {unknown[0]!r}", param="prompt")
    if params.repetition_penalty != 1.0:
        raise BadRequest("this model has no repetition penalty", param="repetition_penalty")
    if params.extra:
        raise BadRequest(f"unknown parameter {next(iter(params.extra))}", param=next(iter(params.extra)))


class TextModel(nn.Module):
    """Embedding, decoder layers and a head; weights are uninitialised until the loader or :meth:`randomise` fills them.

    ``outputs``: rows of the head, the vocabulary where None is given; a tied head is the embedding itself.
    """

    def __init__(
        self,
        config: TextSection,
        *,
        device: torch.device,
        dtype: torch.dtype,
        make_stack: StackFactory = LayerStack,
        outputs: int | None = None,
    ) -> None:
        super().__init__()
        self.text = config
        self.device, self.dtype = device, dtype
        self.embeddings = weight(config.vocab_size, config.hidden_size, device=device, dtype=dtype)
        self.stack = make_stack(config.stack, device=device, dtype=dtype)
        tied = config.tie_word_embeddings and outputs is None
        rows = config.vocab_size if outputs is None else outputs
        self.products = () if tied else ("head",)
        self.head = self.embeddings if tied else weight(rows, config.hidden_size, device=device, dtype=dtype)

    def randomise(self, generator: torch.Generator) -> None:
        """Random weights of a scale at which a deep model neither dies nor explodes."""

        def draw(*parameters: nn.Parameter) -> None:
            for parameter in parameters:
                if parameter.dim() == 1:
                    parameter.fill_(1.0)
                else:
                    parameter.normal_(0.0, parameter.shape[1] ** -0.5, generator=generator)

        draw(self.embeddings)
        if self.head is not self.embeddings:
            draw(self.head)
        self.stack.norm.fill_(1.0)
        self.stack.fill(lambda _, layer: draw(*layer.parameters()))

    def with_audio(self, tokens: Tensor, audio: Tensor, audio_pad_id: int) -> Tensor:
        """Embeddings ``(n, width)`` of ``tokens`` ``(n,)``, those of audio positions from ``audio``, which has a row
        for each of them."""
        x = self.embeddings[tokens]
        x[tokens == audio_pad_id] = audio.to(self.device, x.dtype)
        return x

    def logits(self, hidden: Tensor) -> Tensor:
        """Float32 ``(B, outputs)``."""
        return linear(hidden, self.head).float()


class AsrModel(TextModel):
    """See :class:`omni.engines.torch.TorchARModel`."""

    def __init__(
        self,
        config: AsrConfig,
        *,
        device: torch.device,
        dtype: torch.dtype,
        make_stack: StackFactory = LayerStack,
    ) -> None:
        super().__init__(config.text, device=device, dtype=dtype, make_stack=make_stack)
        self.config = config
        self.width = config.text.hidden_size
        self.kv = config.text.stack.kv
        self.codebooks = 0
        self.max_positions = config.text.max_position_embeddings
        self._stops = torch.tensor(config.stop_ids, device=device)

    def check(self, prompt: Prompt, params: SamplingParams) -> None:
        check_prompt(self.config, prompt, params)

    def embed(self, part: PromptSlice) -> Tensor:
        """Columns after the prompt are text, also those that name the audio token."""
        given = part.prompt.tokens
        end = min(part.stop, len(given))
        if AUDIO not in part.prompt.embeds or part.start >= end:
            return self.embeddings[part.tokens]
        pads = torch.as_tensor(given[:end]) == self.config.audio_pad_id
        before, here = int(pads[: part.start].sum()), pads[part.start :].nonzero().squeeze(1)
        x = self.embeddings[part.tokens]
        if len(here):
            audio = torch.as_tensor(part.prompt.embeds[AUDIO])[before : before + len(here)]
            x[here.to(self.device)] = audio.to(self.device, x.dtype)
        return x

    def forward(self, x: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        return self.stack(x, positions, attend)

    def new_state(self, rows: int) -> None:
        """Nothing is kept between steps."""

    def admit(
        self, state: None, row: int, prompt: Prompt, params: SamplingParams, tokens: Tensor, codes: Tensor
    ) -> None:
        pass

    def step(self, hidden: Tensor, step: Step, state: Any) -> StepResult:
        token = _pick(self.logits(hidden), step)
        codes = token.new_zeros(len(token), 0)
        stop = (token.unsqueeze(1) == self._stops).any(1)
        return StepResult(token, codes, stop, self.embeddings[token])


def _pick(logits: Tensor, step: Step) -> Tensor:
    """A token ``(B,)`` of every row of ``logits`` ``(B, V)``."""
    best = logits.argmax(-1)
    if step.candidates == 1:
        return best
    values, ids = top_candidates(logits, step.candidates)
    p = standard_filter(values, step.temperature, step.top_p, step.top_k)
    drawn = ids.gather(1, race(p, step.uniform(0, ids)).unsqueeze(1)).squeeze(1)
    return torch.where(step.greedy, best, drawn)
