"""Random traffic: arrivals, slow readers and cancellations over a small cache; every answer still exact."""

from __future__ import annotations

import numpy as np
import pytest

from omni.engines.base import Prompt


@pytest.mark.parametrize("seed", range(4))
def test_random_traffic(toys, make_engine, run, jobs, seed) -> None:
    model = toys.Dual()
    work = jobs(24, dual=True, seed=seed)
    # Shared beginnings, so that the prefix cache has something to do.
    head = work[0][0]
    for i in range(0, len(work), 3):
        prompt, params = work[i]
        tokens = np.concatenate((head.tokens, prompt.tokens))
        work[i] = (Prompt(tokens=tokens, codes=np.concatenate((head.codes, prompt.codes), 1)), params)
    expected = [run(make_engine(model, prefix_cache=False), [job])[0] for job in work]
    rng = np.random.default_rng(seed)
    engine = make_engine(model, kv_tokens=128, max_running=int(rng.integers(2, 9)), prefill_chunk=11)
    running = []
    for i, (prompt, params) in enumerate(work):
        sink = toys.Collector(credit=int(rng.integers(0, 4)) if rng.random() < 0.4 else None)
        running.append((i, sink, engine.submit(str(i), prompt, params, sink)))
        if rng.random() < 0.3:
            _, sink, _ = running[rng.integers(len(running))]
            sink.grant(int(rng.integers(1, 5)))
    aborted = {int(i) for i in rng.choice(len(work), 6, replace=False)}
    for i in aborted:
        engine.abort(running[i][2])
    for _, sink, _ in running:
        sink.grant(None)
    for i, sink, _ in running:
        if i in aborted:
            codes = [o.codes.tolist() for o in sink.outputs if o.codes is not None]
            assert codes == expected[i][: len(codes)]
        else:
            assert sink.result() == expected[i]
    run(engine, [work[1]])
    stats = engine.stats()
    assert (stats.running, stats.waiting, stats.paused, stats.kv_tokens_used) == (0, 0, 0, 0)
