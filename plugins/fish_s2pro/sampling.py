"""The reference's filter and its repetition-aware draw, on candidates sorted once."""

from __future__ import annotations

import torch
from torch import Tensor

from omni.engines.torch import Step, race, top_candidates

RAS_WINDOW = 10
RAS_TEMPERATURE = 1.0
RAS_TOP_P = 0.9


class Filter:
    """The filter for one set of parameters, tensors ``(B,)``; made once per step, used for every codebook.

    In this order: nucleus on the distribution at temperature 1, where the entry that crosses ``top_p`` falls too (1:
    off); ``top_k`` (0: off); the best entry always stays; temperature; softmax over what is left.
    """

    def __init__(self, temperature: Tensor, top_p: Tensor, top_k: Tensor) -> None:
        self._scale = temperature.clamp_min(1e-5).reciprocal().unsqueeze(-1)
        self._mass = torch.where(top_p < 1, top_p, torch.inf).unsqueeze(-1)
        self._top_k = torch.where(top_k > 0, top_k, torch.iinfo(torch.int64).max).unsqueeze(-1)
        self._ranks: dict[int, tuple[Tensor, Tensor]] = {}

    def _by_rank(self, count: int) -> tuple[Tensor, Tensor]:
        """Which of ``count`` ranks ``top_k`` drops ``(B, count)``, and which may be dropped at all ``(count,)``."""
        if count not in self._ranks:
            rank = torch.arange(count, device=self._top_k.device)
            self._ranks[count] = rank >= self._top_k, rank > 0
        return self._ranks[count]

    def __call__(self, values: Tensor, total: Tensor) -> Tensor:
        """Probabilities ``(B, K)`` of sorted candidates ``values`` ``(B, K)``; ``total`` ``(B, 1)`` is the logarithm of
        the sum of all exponentials."""
        dropped, others = self._by_rank(values.shape[-1])
        mass = (values - total).exp_().cumsum(-1)
        outside = ((mass > self._mass) | dropped) & others
        return (values * self._scale).masked_fill_(outside, -torch.inf).softmax(-1)


class Draw:
    """One decision for every row of ``logits`` ``(B, V)``, float32: sorted once, drawn from as often as needed.

    ``ids`` int64 ``(V,)`` names the entries (default: their index); randomness hangs on these names.
    """

    def __init__(self, logits: Tensor, step: Step, ids: Tensor | None = None) -> None:
        self._step = step
        best = logits.argmax(-1)
        self._best = best if ids is None else ids[best]
        if step.candidates != 1:
            self._values, found = top_candidates(logits, step.candidates)
            self._ids = found if ids is None else ids[found]
            self._total = logits.logsumexp(-1, keepdim=True)

    def pick(self, stream: int, rule: Filter) -> Tensor:
        """Ids ``(B,)``; greedy rows take the best entry."""
        if self._step.candidates == 1:
            return self._best
        rank = race(rule(self._values, self._total), self._step.uniform(stream, self._ids))
        drawn = self._ids.gather(1, rank.unsqueeze(1)).squeeze(1)
        return torch.where(self._step.greedy, self._best, drawn)


def repetition_aware(draw: Draw, step: Step, rule: Filter, window: Tensor, *, normal: int, high: int) -> Tensor:
    """A draw; where it is in ``window`` ``(B, RAS_WINDOW)``, one at temperature 1 and nucleus 0.9 instead.

    ``normal`` and ``high`` are the streams of the two draws. The window holds semantic ids and zeros only, so a
    control token is never found in it.
    """
    token = draw.pick(normal, rule)
    even = torch.full_like(step.temperature, RAS_TEMPERATURE)
    other = draw.pick(high, Filter(even, even * RAS_TOP_P, step.top_k))
    return torch.where((window == token.unsqueeze(1)).any(1), other, token)
