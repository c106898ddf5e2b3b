"""The reference's rules for the next code, on candidates sorted once."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from omni.engines.torch import Step, race, standard_filter, top_candidates

MIN_FRAMES = 2
"""So many frames are spoken before the end may come."""


@dataclass(frozen=True)
class Rule:
    """How one kind of code is sampled, every tensor ``(B,)``. ``greedy``: the best entry is taken."""

    greedy: Tensor
    temperature: Tensor
    top_p: Tensor
    top_k: Tensor


def penalised(scores: Tensor, seen: Tensor, penalty: Tensor) -> Tensor:
    """Scores ``(B, V)`` where those of ``seen`` entries, bool ``(B, V)``, are weakened by ``penalty`` ``(B,)``, once
    each. Source: CTRL (Keskar 2019), for scores of either sign."""
    factor = penalty.unsqueeze(1)
    return torch.where(seen, torch.where(scores < 0, scores * factor, scores / factor), scores)


def draw(scores: Tensor, step: Step, rule: Rule, stream: int) -> Tensor:
    """An entry of float32 ``scores`` ``(B, V)`` per row, int64 ``(B,)``; ``stream`` names the decision."""
    best = scores.argmax(-1)
    if step.candidates == 1:
        return best
    values, ids = top_candidates(scores, step.candidates)
    p = standard_filter(values, rule.temperature, rule.top_p, rule.top_k)
    rank = race(p, step.uniform(stream, ids))
    return torch.where(rule.greedy, best, ids.gather(1, rank.unsqueeze(1)).squeeze(1))
