"""The reference's filter and its repetition-aware draw, on candidates sorted once."""

from __future__ import annotations

import torch
from torch import Tensor

from omni.engines.torch import Step, race, top_candidates

RAS_WINDOW = 10
RAS_TEMPERATURE = 1.0
RAS_TOP_P = 0.9


def filtered(values: Tensor, total: Tensor, temperature: Tensor, top_p: Tensor, top_k: Tensor) -> Tensor:
    """Probabilities ``(B, K)`` of sorted candidates ``values`` ``(B, K)``; ``total`` ``(B, 1)`` is the log of the sum
    of all exponentials, the other arguments are ``(B,)``.

    In this order: nucleus on the distribution at temperature 1, where the entry that crosses ``top_p`` falls too;
    ``top_k`` (0: off); the best entry always stays; temperature; softmax over what is left.
    """
    rank = torch.arange(values.shape[-1], device=values.device)
    mass = (values - total).exp().cumsum(-1)
    top_p, top_k = top_p.unsqueeze(-1), top_k.unsqueeze(-1)
    outside = ((mass > top_p) & (top_p < 1)) | ((rank >= top_k) & (top_k > 0))
    outside &= rank > 0
    scaled = values / temperature.clamp_min(1e-5).unsqueeze(-1)
    return scaled.masked_fill(outside, -torch.inf).softmax(-1)


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

    def pick(self, stream: int, temperature: Tensor | None = None, top_p: Tensor | None = None) -> Tensor:
        """Ids ``(B,)``, with the request's parameters where none are given; greedy rows take the best entry."""
        step = self._step
        if step.candidates == 1:
            return self._best
        p = filtered(
            self._values,
            self._total,
            step.temperature if temperature is None else temperature,
            step.top_p if top_p is None else top_p,
            step.top_k,
        )
        rank = race(p, step.uniform(stream, self._ids))
        return torch.where(step.greedy, self._best, self._ids.gather(1, rank.unsqueeze(1)).squeeze(1))


def repetition_aware(draw: Draw, window: Tensor, normal: int, high: int) -> Tensor:
    """A draw; where it is in ``window`` ``(B, RAS_WINDOW)``, one at temperature 1 and nucleus 0.9 instead.

    ``normal`` and ``high`` are the streams of the two draws. The window holds semantic ids and zeros only, so a
    control token is never found in it.
    """
    token = draw.pick(normal)
    even = torch.full(token.shape, RAS_TEMPERATURE, device=token.device)
    other = draw.pick(high, even, even * RAS_TOP_P)
    return torch.where((window == token.unsqueeze(1)).any(1), other, token)
