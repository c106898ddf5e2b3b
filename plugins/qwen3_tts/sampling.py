"""The reference's rules for the next code, on candidates sorted once."""

from __future__ import annotations

import torch
from torch import Tensor

from omni.engines.torch import Step, race, top_candidates

MIN_FRAMES = 2
"""So many frames are spoken before the end may come."""


class Rule:
    """How one kind of code is sampled; made once per step, used for every code of the kind. All arguments ``(B,)``.

    In this order: temperature; ``top_k`` (0: off); nucleus, in which the entry that crosses ``top_p`` stays (1: off).
    ``greedy`` rows take the best entry.
    """

    def __init__(self, greedy: Tensor, temperature: Tensor, top_p: Tensor, top_k: Tensor) -> None:
        self._greedy = greedy
        self._scale = temperature.clamp_min(1e-5).reciprocal().unsqueeze(-1)
        self._mass = torch.where(top_p < 1, top_p, torch.inf).unsqueeze(-1)
        self._top_k = torch.where(top_k > 0, top_k, torch.inf).unsqueeze(-1)
        self._dropped: dict[int, Tensor] = {}

    def _beyond(self, count: int) -> Tensor:
        """Which of ``count`` ranks ``top_k`` drops, ``(B, count)``."""
        if count not in self._dropped:
            self._dropped[count] = torch.arange(count, device=self._top_k.device) >= self._top_k
        return self._dropped[count]

    def probabilities(self, values: Tensor) -> Tensor:
        """Of sorted candidates ``(B, K)``; what is dropped has 0, and the rest need not sum to 1."""
        p = (values * self._scale).masked_fill_(self._beyond(values.shape[-1]), -torch.inf).softmax(-1)
        before = p.cumsum(-1).sub_(p)
        return p.masked_fill(before >= self._mass, 0.0)

    def draw(self, scores: Tensor, step: Step, stream: int) -> Tensor:
        """An entry of float32 ``scores`` ``(B, V)`` per row, int64 ``(B,)``; ``stream`` names the decision."""
        best = scores.argmax(-1)
        if step.candidates == 1:
            return best
        values, ids = top_candidates(scores, step.candidates)
        rank = race(self.probabilities(values), step.uniform(stream, ids))
        # Not the first candidate: of equal scores a sort may put any first, and greedy must not depend on the batch.
        return torch.where(self._greedy, best, ids.gather(1, rank.unsqueeze(1)).squeeze(1))


def penalised(scores: Tensor, seen: Tensor, penalty: Tensor) -> Tensor:
    """Scores ``(B, V)`` where those of ``seen`` entries, bool ``(B, V)``, are weakened by ``penalty`` ``(B,)``, once
    each. Source: CTRL (Keskar 2019), for scores of either sign."""
    factor = penalty.unsqueeze(1)
    return torch.where(seen, torch.where(scores < 0, scores * factor, scores / factor), scores)
