"""The engine as a whole, on toy models: one result per seed whatever happens around a request."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from omni.engines.base import Engine, Prompt, SamplingParams
from omni.engines.torch import Step, TorchEngine, create_engine, parse_options
from omni.engines.torch.graphs import StepGraphs, _Captured
from omni.errors import BadRequest, Busy, ConfigError, Unavailable


def greedy(count: int = 10) -> SamplingParams:
    return SamplingParams(max_new_tokens=count, temperature=0.0)


def endless(count: int) -> SamplingParams:
    """For requests of which a test needs to know that they still run."""
    return SamplingParams(max_new_tokens=count, seed=1, extra={"endless": True})


def reference(model, prompt: Prompt, params: SamplingParams) -> list[list[int]]:
    """Decode with a full recomputation per step: no cache, no batch, no engine."""
    from omni.engines.torch import PromptSlice

    tokens = torch.as_tensor(prompt.tokens)
    codes = torch.as_tensor(prompt.codes) if model.codebooks else torch.empty(0, len(tokens), dtype=torch.long)
    state, out = model.new_state(1), []
    model.admit(state, 0, prompt, params, tokens[:0], codes[:, :0])

    def full(layer: int, q, k, v):
        heads, n = q.shape[1], q.shape[0]
        k, v = (t.repeat_interleave(heads // t.shape[1], 1) for t in (k, v))
        mixed = torch.nn.functional.scaled_dot_product_attention(
            q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1), is_causal=True
        )
        return mixed.transpose(0, 1).reshape(n, -1)

    for index in range(params.max_new_tokens):
        x = model.embed(PromptSlice(prompt, 0, len(tokens), tokens, codes))
        hidden = model.forward(x, torch.arange(len(tokens)), full)[-1:]
        one = torch.ones(1, dtype=torch.long)
        step = Step(
            rows=one * 0,
            seed=one * params.seed,
            index=one * index,
            temperature=one * params.temperature,
            top_p=one * params.top_p,
            top_k=one * params.top_k,
            candidates=0,
        )
        result = model.step(hidden, step, state)
        if result.stop:
            break
        out.append((result.codes if model.codebooks else result.tokens.unsqueeze(1))[0].tolist())
        tokens = torch.cat((tokens, result.tokens))
        codes = torch.cat((codes, result.codes.t()), 1)
    return out


@pytest.mark.parametrize("kind", ["Text", "Dual"])
def test_every_way_of_running_gives_what_recomputation_gives(toys, make_engine, run, jobs, kind) -> None:
    model = getattr(toys, kind)()
    work = jobs(16, dual=kind == "Dual")
    expected = [reference(model, *job) for job in work]
    assert any(len(e) < p.max_new_tokens for e, (_, p) in zip(expected, work, strict=True)), "no end token met"
    assert any(len(e) == p.max_new_tokens for e, (_, p) in zip(expected, work, strict=True))

    alone = make_engine(model, prefix_cache=False)
    assert [run(alone, [job])[0] for job in work] == expected
    assert alone.stats().prefix_hit_tokens_total == 0

    together = make_engine(model, prefill_chunk=7)
    assert run(together, work) == expected
    assert run(together, work) == expected, "with a warm prefix cache"
    assert together.stats().prefix_hit_tokens_total > 0
    assert together.stats().kv_tokens_used == 0

    scarce = make_engine(model, kv_tokens=80, max_running=16)
    assert run(scarce, work) == expected
    assert scarce.stats().preemptions_total > 0


@pytest.mark.parametrize("kind", ["Text", "Dual"])
def test_padded_batches_as_graphs_replay_them(toys, make_engine, run, jobs, kind) -> None:
    """CUDA graphs cannot be captured here, but all else about them can run: fixed inputs, padded rows and contexts."""
    model, sizes = getattr(toys, kind)(), set()

    class Replayed(StepGraphs):
        def _capture(self, size, pages, candidates):
            rows = torch.full((size,), self._nobody)
            output = torch.empty(size, 2 + model.codebooks, dtype=torch.int64)

            def replay() -> None:
                sizes.add((size, pages, candidates))
                output.copy_(self._step(rows, ((0, size, pages),), candidates))

            replay()
            return _Captured(SimpleNamespace(replay=replay), rows, output)

    work = jobs(11, dual=kind == "Dual", length=60)
    expected = run(make_engine(model), work)
    engine = make_engine(model, kv_tokens=400, max_running=6)
    runner = engine._runner
    runner._graphs = Replayed(runner._step, 6, 100, model.device)
    assert run(engine, work) == expected
    assert {size for size, _, _ in sizes} == {1, 2, 4, 6}
    assert {pages for _, pages, _ in sizes} >= {16, 32}
    assert (runner._positions[-1], runner._tables[-1].sum()) == (0, 0), "the padded row stays where it is"


def test_implements_the_interface(toys) -> None:
    assert isinstance(create_engine(toys.Text(), {}), Engine)


def test_stop_and_length(toys, make_engine) -> None:
    engine = make_engine(toys.Text())
    prompt = Prompt(tokens=np.array([5, 6, 7]))
    long = toys.Collector()
    engine.submit("a", prompt, SamplingParams(max_new_tokens=400, temperature=1.5, seed=3), long)
    codes = long.result()
    assert long.outputs[-1].finish_reason == "stop"
    assert long.outputs[-1].codes is None
    assert long.outputs[-1].step == len(codes)
    short = toys.Collector()
    engine.submit("b", prompt, SamplingParams(max_new_tokens=4, temperature=1.5, seed=3), short)
    assert short.result() == codes[:4]
    assert short.outputs[-1].finish_reason == "length"
    assert [o.prompt_tokens for o in short.outputs] == [3] * 4


def test_seed_none_differs_and_any_integer_is_a_seed(toys, make_engine, run) -> None:
    engine = make_engine(toys.Text())

    def with_seed(seed: int | None) -> list[list[int]]:
        params = SamplingParams(max_new_tokens=30, temperature=2.0, seed=seed)
        return run(engine, [(Prompt(tokens=[1, 2]), params)])[0]

    assert len({str(with_seed(None)) for _ in range(6)}) > 1
    assert with_seed(-(2**70)) == with_seed(-(2**70))
    assert with_seed(1) != with_seed(2)


def test_prompt_is_shared_with_later_turns(toys, make_engine, run) -> None:
    """A second turn that holds the first turn's output finds prompt and output in the cache."""
    engine = make_engine(toys.Dual(), page_size=4)
    first = Prompt(tokens=np.arange(1, 21), codes=np.ones((3, 20), int))
    codes = np.array(run(engine, [(first, greedy(30))])[0]).T
    frames = codes.shape[1]
    assert frames >= 8, "the toy ends too early for this test"
    tokens = np.concatenate((first.tokens, codes[0] + toys.Dual.begin, [3, 4, 5]))
    columns = np.concatenate((first.codes, codes, np.zeros((3, 3), int)), 1)
    sink = toys.Collector()
    engine.submit("again", Prompt(tokens=tokens, codes=columns), greedy(), sink)
    sink.result()
    # The last frame was given out but never fed, so it has no keys yet.
    assert sink.outputs[0].cached_tokens == (20 + frames - 1) // 4 * 4


def test_voices_that_share_tokens_but_not_codes_share_nothing(toys, make_engine, run) -> None:
    model = toys.Dual()
    tokens = np.arange(20, 36)
    voices = [np.zeros((3, 16), int), np.zeros((3, 16), int)]
    voices[1][2, 0] = 9
    work = [(Prompt(tokens=tokens, codes=codes), greedy(12)) for codes in voices]
    expected = [reference(model, *job) for job in [(p, SamplingParams(**{**_fields(q), "seed": 0})) for p, q in work]]
    assert expected[0] != expected[1]
    engine = make_engine(model)
    for prompt, want, hit in [(0, 0, False), (1, 1, False), (0, 0, True), (1, 1, True)]:
        sink = toys.Collector()
        engine.submit("v", *work[prompt], sink)
        assert sink.result() == expected[want]
        assert (sink.outputs[0].cached_tokens > 0) == hit


def _fields(params: SamplingParams) -> dict:
    return {name: getattr(params, name) for name in params.__struct_fields__}


def test_extra_embeddings_and_salt_are_part_of_the_prefix(toys, make_engine) -> None:
    engine = make_engine(toys.Text())

    def cached(**extra) -> int:
        sink = toys.Collector()
        engine.submit("e", Prompt(tokens=np.arange(1, 17), **extra), greedy(2), sink)
        sink.result()
        return sink.outputs[0].cached_tokens

    shift = np.full(toys.Text.width, 0.5, np.float32)
    assert cached() == 0
    assert cached() == 12
    assert cached(embeds={"shift": shift}) == 0
    assert cached(embeds={"shift": shift.copy()}) == 12
    assert cached(embeds={"shift": shift * 2}) == 0
    assert cached(salt=b"x") == 0
    assert cached(salt=b"x") == 12
    # Whole pages of what depends on neither are shared with everybody.
    assert cached(salt=b"y", plain=9) == 8
    assert cached(embeds={"shift": shift * 3}, plain=7) == 4
    assert cached(salt=b"y", plain=9) == 12


def test_full_sink_pauses_only_its_request(toys, make_engine, run) -> None:
    engine = make_engine(toys.Text(), max_running=2)
    params = SamplingParams(max_new_tokens=20, temperature=1.0, seed=11, top_p=0.5)
    prompt = Prompt(tokens=[7, 8, 9])
    expected = run(engine, [(prompt, params)])[0]
    assert len(expected) > 8
    slow = toys.Collector(credit=3)
    engine.submit("slow", prompt, params, slow)
    assert slow.full.wait(10)
    # More others than free rows: the paused request must give its row up.
    others = [(Prompt(tokens=[i + 1, 2]), greedy(15)) for i in range(6)]
    assert all(run(engine, others))
    assert len(slow.outputs) == 3
    slow.grant(2)
    assert slow.full.wait(10)
    assert len(slow.outputs) == 5
    slow.grant(None)
    assert slow.result() == expected


def test_request_without_room_from_the_start_waits(toys, make_engine) -> None:
    engine = make_engine(toys.Text())
    sink = toys.Collector(credit=0)
    engine.submit("r", Prompt(tokens=[1]), greedy(3), sink)
    assert sink.full.wait(10)
    assert sink.outputs == []
    sink.grant(None)
    assert sink.result()


def test_abort_frees_everything_and_ends_output(toys, make_engine, run) -> None:
    engine = make_engine(toys.Text(), prefix_cache=False)
    for state in ("running", "paused"):
        sink = toys.Collector(credit=None if state == "running" else 2)
        handle = engine.submit(state, Prompt(tokens=np.arange(1, 30)), endless(400), sink)
        assert (sink.started if state == "running" else sink.full).wait(10)
        engine.abort(handle)
        run(engine, [(Prompt(tokens=[1]), greedy(1))])  # one more step is over
        stats = engine.stats()
        assert (stats.running, stats.paused, stats.waiting, stats.kv_tokens_used) == (0, 0, 0, 0)
        seen = len(sink.outputs)
        run(engine, [(Prompt(tokens=[1]), greedy(3))])
        assert len(sink.outputs) == seen
        engine.abort(handle)  # again is nothing


def test_abort_while_waiting(toys, make_engine, run) -> None:
    engine = make_engine(toys.Text(), max_running=1)
    running, waiting = toys.Collector(), toys.Collector()
    first = engine.submit("a", Prompt(tokens=[1]), endless(500), running)
    second = engine.submit("b", Prompt(tokens=[2]), greedy(5), waiting)
    engine.abort(second)
    engine.abort(first)
    assert run(engine, [(Prompt(tokens=[3]), greedy(2))])[0]
    assert waiting.outputs == []
    assert engine.stats().waiting == 0


def test_queue_is_bounded(toys, make_engine) -> None:
    engine = make_engine(toys.Text(), max_running=1, max_waiting=2)
    sinks = [toys.Collector(credit=0) for _ in range(3)]
    handles = [engine.submit("r", Prompt(tokens=[1]), greedy(1), sink) for sink in sinks]
    with pytest.raises(Busy) as refused:
        engine.submit("r", Prompt(tokens=[1]), greedy(1), toys.Collector())
    assert refused.value.retry_after
    engine.abort(handles[0])
    for sink in sinks[1:]:
        sink.grant(None)
        sink.result()
    last = toys.Collector()
    engine.submit("r", Prompt(tokens=[1]), greedy(1), last)
    assert last.result()


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"max_new_tokens": 999}, "max_new_tokens"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_k": -1}, "top_k"),
    ],
)
def test_impossible_parameters_are_refused(toys, make_engine, change, param) -> None:
    engine = make_engine(toys.Text(), kv_tokens=300)
    with pytest.raises(BadRequest) as refused:
        engine.submit("r", Prompt(tokens=[1]), SamplingParams(**{"max_new_tokens": 5, **change}), toys.Collector())
    assert refused.value.param == param


def test_impossible_prompts_are_refused(toys, make_engine) -> None:
    engine = make_engine(toys.Dual(), kv_tokens=40)
    zeros = np.zeros((3, 4), int)
    for tokens, codes, param in [
        ([], None, "prompt"),
        ([[1]], None, "prompt"),
        ([0.5], None, "prompt"),
        ([99], None, "prompt"),
        (list(range(1, 30)) * 2, None, "prompt"),
        ([1, 2, 3], zeros, "codes"),
        ([1, 2, 3, 4], zeros + 0.5, "codes"),
    ]:
        with pytest.raises(BadRequest) as refused:
            engine.submit("r", Prompt(tokens=tokens, codes=codes), greedy(1), toys.Collector())
        assert refused.value.param == param
    text = make_engine(toys.Text())
    with pytest.raises(BadRequest):
        text.submit("r", Prompt(tokens=[1, 2, 3, 4], codes=zeros), greedy(1), toys.Collector())


def test_options_are_checked(toys) -> None:
    for options in ({"pagesize": 1}, {"page_size": 0}, {"kv_memory": 1.5}):
        with pytest.raises(ConfigError) as refused:
            create_engine(toys.Text(), options)
        assert next(iter(options)) in refused.value.message
    with pytest.raises(ConfigError):
        create_engine(toys.Text(), {"kv_tokens": 3, "page_size": 4}).start()


def test_not_started(toys) -> None:
    engine = TorchEngine(toys.Text(), parse_options({}))
    with pytest.raises(Unavailable):
        engine.submit("r", Prompt(tokens=[1]), greedy(1), toys.Collector())
    engine.close()


def test_idle_engine_sleeps(toys, make_engine, run, monkeypatch) -> None:
    engine = make_engine(toys.Text())
    rounds = 0
    original = engine._round

    def counted() -> bool:
        nonlocal rounds
        rounds += 1
        return original()

    monkeypatch.setattr(engine, "_round", counted)
    paused = toys.Collector(credit=1)
    engine.submit("p", Prompt(tokens=[1]), endless(100), paused)
    assert paused.full.wait(10)
    run(engine, [(Prompt(tokens=[1]), greedy(1))])
    settled = rounds
    assert not threading.Event().wait(0.2)
    assert rounds <= settled + 1


def test_statistics(toys, make_engine, run) -> None:
    engine = make_engine(toys.Text(), kv_tokens=256)
    work = [(Prompt(tokens=np.arange(1, 14)), greedy(5))] * 2
    codes = [run(engine, [job])[0] for job in work]
    stats = engine.stats()
    assert stats.prompt_tokens_total == 26
    assert stats.prefix_hit_tokens_total == 12
    assert stats.generated_tokens_total == sum(map(len, codes))
    assert stats.kv_tokens_total == 256
    assert stats.kv_tokens_used == 0
    assert stats.steps_total >= stats.generated_tokens_total
    assert stats.preemptions_total == 0
    held = toys.Collector(credit=2)
    engine.submit("h", Prompt(tokens=np.arange(1, 14)), endless(50), held)
    assert held.full.wait(10)
    run(engine, [(Prompt(tokens=[1]), greedy(1))])
    assert engine.stats().paused == 1
    assert engine.stats().kv_tokens_used == 16
