"""The talker for the torch engine: one position per text token or frame, the codes of a frame by a depth model.

A position is a column: the token of the text track, and the codes of the codec track, whose embeddings are summed. The
first code is an id of the talker's codec vocabulary, or :attr:`Talker.no_code`, or :attr:`Talker.speaker_code` where
the speaker vector of the prompt stands. Below ``codebook_size`` it is a frame, which has the other codes as well.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

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
from qwen3_tts.config import TTSConfig
from qwen3_tts.dims import predictor_block, talker_stack
from qwen3_tts.sampling import MIN_FRAMES, Rule, penalised

SPEAKER = "speaker"
"""Name of the speaker vector, float ``(hidden_size,)``, among the embeddings of a prompt."""

_HEAD_MULTIPLE = 8
_EXTRA = frozenset({"tail", "temperature", "top_k", "subtalker_temperature", "subtalker_top_k", "subtalker_top_p"})
_RULES = ("temperature", "top_p", "top_k", "subtalker_temperature", "subtalker_top_p", "subtalker_top_k", "penalty")


@dataclass
class TalkerState:
    """Per row: ``seen`` bool ``(rows, codebook)`` first codes so far, ``tail`` int64 ``(rows, positions)`` text that is
    still to be fed with its length ``(rows,)``, ``rules`` float32 ``(rows, 7)`` numbers to sample by."""

    seen: Tensor
    tail: Tensor
    length: Tensor
    rules: Tensor


def check_prompt(config: TTSConfig, prompt: Prompt, params: SamplingParams) -> None:
    """Raise :class:`BadRequest` for ids and codes out of range, and for parameters that have no meaning here."""
    talker = config.talker
    tokens = torch.as_tensor(prompt.tokens)
    if not (int(tokens.min()) >= 0 and int(tokens.max()) < talker.text_vocab_size):
        raise BadRequest(f"token ids must be 0 to {talker.text_vocab_size - 1}", param="prompt")
    if prompt.codes is None:
        raise BadRequest("this model needs the codec track", param="codes")
    codes = torch.as_tensor(prompt.codes)
    first, others = codes[0], codes[1:]
    if not (int(first.min()) >= 0 and int(first.max()) <= talker.vocab_size + 1):
        raise BadRequest(f"ids of the codec track must be 0 to {talker.vocab_size + 1}", param="codes")
    if not (int(others.min()) >= 0 and int(others.max()) < config.codebook_size):
        raise BadRequest(f"codes must be 0 to {config.codebook_size - 1}", param="codes")
    speakers = int((first == talker.vocab_size + 1).sum())
    vector = prompt.embeds.get(SPEAKER)
    if bool(speakers) != (vector is not None) or set(prompt.embeds) - {SPEAKER}:
        raise BadRequest("a prompt has a speaker vector exactly if it has a place for it", param="embeds")
    if vector is not None and tuple(vector.shape) != (talker.hidden_size,):
        raise BadRequest(f"a speaker vector has {talker.hidden_size} values", param="embeds")
    if unknown := set(params.extra) - _EXTRA:
        raise BadRequest(f"unknown parameter {min(unknown)}", param=min(unknown))
    tail = params.extra.get("tail", [])
    if len(tail) > talker.max_position_embeddings or not all(0 <= i < talker.text_vocab_size for i in tail):
        raise BadRequest(
            f"text still to be fed must be at most {talker.max_position_embeddings} ids of the text vocabulary",
            param="tail",
        )


class Talker(nn.Module):
    """See :class:`omni.engines.torch.TorchARModel`. Weights are uninitialised until :mod:`qwen3_tts.loader` fills them.

    The engine's ``temperature`` and ``top_k`` bound those of all codes; what each kind of code is sampled by stands in
    ``extra``: ``temperature`` and ``top_k`` of the first code, ``subtalker_*`` of the others; ``top_p`` is the first
    code's own. ``extra["tail"]`` are the text tokens that are fed with the coming frames, one each.

    ``text`` is the text embedding after its projection, so that no step projects anything. With ``project`` the depth
    model is narrower than the talker; its inputs are embeddings that were projected when the weights were loaded.
    """

    products = ("head", "project", "depth_heads")

    def __init__(
        self,
        config: TTSConfig,
        *,
        device: torch.device,
        dtype: torch.dtype,
        make_stack: StackFactory = LayerStack,
    ) -> None:
        super().__init__()
        self.config = config
        self.device, self.dtype = device, dtype
        talker, predictor = config.talker, config.talker.code_predictor
        dims, depth = talker_stack(config), predictor_block(config)
        self.width = talker.hidden_size
        self.kv = dims.kv
        self.codebooks = config.codebooks
        self.max_positions = talker.max_position_embeddings
        self.no_code, self.speaker_code = talker.vocab_size, talker.vocab_size + 1
        self._size = size = config.codebook_size
        groups = self.codebooks - 1

        def make(*shape: int) -> nn.Parameter:
            return weight(*shape, device=device, dtype=dtype)

        self.text = make(talker.text_vocab_size, self.width)
        # Two rows of zeros more: no code, and the speaker's place.
        self.codec = make(talker.vocab_size + 2, self.width)
        self.residual = make(groups * size, self.width)
        self.stack = make_stack(dims, device=device, dtype=dtype)
        # Sampled are codes and the end; zero rows fill up to a size the kernels like.
        self.head = make(-(-(size + 1) // _HEAD_MULTIPLE) * _HEAD_MULTIPLE, self.width)
        narrower = predictor.hidden_size != self.width
        self.project = make(predictor.hidden_size, self.width) if narrower else None
        self.project_bias = make(predictor.hidden_size) if narrower else None
        # What the depth model is fed: rows of the first code's embedding, then of all others but the last.
        self.fed = make(groups * size, predictor.hidden_size) if narrower else None
        self.depth = DepthTransformer(
            [DecoderLayer(depth, device=device, dtype=dtype) for _ in range(predictor.num_hidden_layers)],
            make(predictor.hidden_size),
            Rope(predictor.head_dim, predictor.rope_theta, self.codebooks, device=device, interleaved=False),
        )
        self.depth_heads = nn.ParameterList([make(size, predictor.hidden_size) for _ in range(groups)])
        self._offsets = (torch.arange(groups) * size).to(device)

    # The engine's protocol ----------------------------------------------------------------------------------

    def check(self, prompt: Prompt, params: SamplingParams) -> None:
        check_prompt(self.config, prompt, params)

    def _frame(self, codes: Tensor) -> Tensor:
        """The codec track of frames: ``codes`` ``(n, codebooks)`` to ``(n, width)``."""
        return self.codec[codes[:, 0]] + self.residual[codes[:, 1:] + self._offsets].sum(1)

    def embed(self, part: PromptSlice) -> Tensor:
        codes = part.codes.t()
        is_frame = codes[:, :1] < self._size
        x = self.text[part.tokens] + torch.where(is_frame, self._frame(codes), self.codec[codes[:, 0]])
        vector = part.prompt.embeds.get(SPEAKER)
        if vector is not None:
            here = (codes[:, :1] == self.speaker_code).to(self.dtype)
            x = x + here * torch.tensor(np.asarray(vector), device=self.device, dtype=self.dtype)
        return x

    def forward(self, x: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Normed hidden states: what both the head and the depth model take."""
        return self.stack(x, positions, attend)

    def new_state(self, rows: int) -> TalkerState:
        def zeros(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.zeros(*shape, dtype=dtype, device=self.device)

        return TalkerState(
            seen=zeros(rows, self._size, dtype=torch.bool),
            tail=zeros(rows, self.max_positions),
            length=zeros(rows),
            rules=zeros(rows, len(_RULES), dtype=torch.float32),
        )

    def admit(
        self,
        state: TalkerState,
        row: int,
        prompt: Prompt,
        params: SamplingParams,
        tokens: Tensor,
        codes: Tensor,
    ) -> None:
        state.seen[row] = False
        if codes.shape[1]:
            state.seen[row, codes[0]] = True
        tail = params.extra.get("tail", [])
        state.length[row] = len(tail)
        state.tail[row, : len(tail)] = torch.tensor(tail, dtype=torch.int64, device=self.device)
        numbers = {
            "temperature": params.temperature,
            "top_k": params.top_k,
            "subtalker_temperature": params.temperature,
            "subtalker_top_k": params.top_k,
            "subtalker_top_p": params.top_p,
            **{name: value for name, value in params.extra.items() if name != "tail"},
            "top_p": params.top_p,
            "penalty": params.repetition_penalty,
        }
        state.rules[row] = torch.tensor([float(numbers[name]) for name in _RULES], device=self.device)

    def logits(self, hidden: Tensor) -> Tensor:
        """Float32 scores ``(B, codebook + 1)`` of the first code, the end of speech last."""
        return linear(hidden, self.head)[:, : self._size + 1].float()

    def condition(self, hidden: Tensor) -> Tensor:
        """What the depth model starts from ``(B, its width)``."""
        return hidden if self.project is None else linear(hidden, self.project, self.project_bias)

    def depth_input(self, group: int, codes: Tensor) -> Tensor:
        """Embeddings of codes of one group ``(B,)``, as the depth model takes them."""
        if self.fed is not None:
            return self.fed[codes + group * self._size]
        return self.codec[codes] if group == 0 else self.residual[codes + (group - 1) * self._size]

    def step(self, hidden: Tensor, step: Step, state: TalkerState) -> StepResult:
        rules = dict(zip(_RULES, state.rules[step.rows].unbind(1), strict=True))
        both = step.greedy

        def rule(prefix: str) -> Rule:
            temperature, top_k = rules[f"{prefix}temperature"], rules[f"{prefix}top_k"]
            greedy = both | (temperature <= 0) | (top_k == 1)
            return Rule(greedy, temperature, rules[f"{prefix}top_p"], top_k)

        seen = state.seen[step.rows]
        scores = self.logits(hidden)
        early = step.index < MIN_FRAMES
        code_scores = penalised(scores[:, : self._size], seen, rules["penalty"])
        end = scores[:, self._size].masked_fill(early, -torch.inf)
        token = rule("").draw(torch.cat((code_scores, end.unsqueeze(1)), 1), step, 0)
        stop = token == self._size
        first = token.clamp(max=self._size - 1)
        state.seen.index_copy_(0, step.rows, seen.scatter(1, first.unsqueeze(1), True))
        others = rule("subtalker_")
        codes = self.depth.generate(
            self.condition(hidden),
            first,
            self.codebooks,
            self.depth_input,
            lambda place, h: others.draw(linear(h, self.depth_heads[place - 1]).float(), step, place),
        )
        within = step.index < state.length[step.rows]
        place = step.index.clamp(max=self.max_positions - 1)
        text = torch.where(within, state.tail[step.rows, place], self.config.tts_pad_id)
        return StepResult(text, codes, stop, self.text[text] + self._frame(codes))
