"""Counter-based randomness and filters."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from omni.engines.torch import counter_uniform, race, standard_filter, top_candidates


def splitmix(seed: int, step: int, stream: int, entry: int) -> float:
    """The same hash in Python integers."""
    mask, gamma = (1 << 64) - 1, 0x9E3779B97F4A7C15

    def mix(x: int) -> int:
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
        return x ^ (x >> 31)

    key = mix((mix((seed + gamma) & mask) + (step * 4096 + stream) * gamma) & mask)
    return ((mix((key + (entry + 1) * gamma) & mask) >> 41) + 0.5) / 2**23


def test_uniform_is_the_hash_of_its_counter_whatever_the_batch() -> None:
    seeds = torch.tensor([0, -1, 2**62, 12345])
    steps = torch.tensor([0, 7, 100_000, 3])
    ids = torch.randint(0, 160_000, (4, 5), generator=torch.Generator().manual_seed(0))
    u = counter_uniform(seeds, steps, 9, ids)
    for row in range(4):
        for column in range(5):
            expected = splitmix(int(seeds[row]) % 2**64, int(steps[row]), 9, int(ids[row, column]))
            assert float(u[row, column]) == pytest.approx(expected, abs=1e-9)
        alone = counter_uniform(seeds[row : row + 1], steps[row : row + 1], 9, ids[row : row + 1].flip(1))
        assert torch.equal(alone.flip(1)[0], u[row])


def test_uniform_is_uniform_and_uncorrelated() -> None:
    n = 4096
    ids = torch.arange(n).expand(64, n)
    seeds, steps = torch.arange(64) // 8, torch.arange(64) % 8
    u = counter_uniform(seeds, steps, 0, ids).double()
    assert u.min() > 0
    assert u.max() < 1
    count = u.numel()
    assert abs(u.mean() - 0.5) < 5 / (12 * count) ** 0.5
    assert abs(u.var() - 1 / 12) < 5 / (180 * count) ** 0.5
    rows = torch.cat((u, counter_uniform(seeds, steps, 1, ids).double())) - 0.5
    correlation = (rows @ rows.t()) / n * 12
    correlation.fill_diagonal_(0)
    assert correlation.abs().max() < 6 / n**0.5


def test_race_draws_from_the_distribution() -> None:
    p = torch.tensor([0.5, 0.3, 0.15, 0.05, 0.0])
    draws = 40_000
    seeds = torch.arange(draws)
    u = counter_uniform(seeds, seeds * 0, 0, torch.arange(5).expand(draws, 5))
    counts = torch.bincount(race(p.expand(draws, 5), u), minlength=5)
    expected = p * draws
    assert counts[4] == 0
    assert (((counts - expected) ** 2)[:4] / expected[:4]).sum() < 25


@pytest.mark.parametrize(
    ("temperature", "top_p", "top_k"), [(1.0, 1.0, 0), (0.7, 0.8, 0), (1.3, 0.9, 5), (0.5, 0.01, 9)]
)
def test_standard_filter(temperature: float, top_p: float, top_k: int) -> None:
    logits = np.random.default_rng(0).normal(size=30) * 2
    order = np.argsort(-logits)
    p = np.exp(logits / temperature)
    if top_k:
        p[order[top_k:]] = 0
    p /= p.sum()
    total = 0.0
    for entry in order:
        if total >= top_p and top_p < 1 and entry != order[0]:
            p[entry] = 0
        total += p[entry]
    values, ids = top_candidates(torch.tensor(logits, dtype=torch.float32)[None], 0)
    found = standard_filter(values, *(torch.tensor([v]) for v in (temperature, top_p)), torch.tensor([top_k]))
    np.testing.assert_allclose(found[0].numpy(), p[ids[0].numpy()], atol=1e-6)


def test_fewer_candidates_give_the_same_probabilities() -> None:
    logits = torch.randn(3, 500, generator=torch.Generator().manual_seed(1))
    args = (torch.tensor([0.8, 1.0, 1.2]), torch.tensor([0.9, 1.0, 0.5]), torch.tensor([16, 3, 9]))
    few, ids = top_candidates(logits, 16)
    every, _ = top_candidates(logits, 0)
    torch.testing.assert_close(standard_filter(few, *args), standard_filter(every, *args)[:, :16])
    assert torch.equal(logits.gather(1, ids), few)
