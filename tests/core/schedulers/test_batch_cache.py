"""The batch scheduler's cache: keys from content, hits that share nothing, single flight, called-off flights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from harness import Gate, Request, is_idle, mailbox, make, quiet, run, turns

from omni import BadRequest, Encoder, Message, StageFailed
from omni.schedulers.batch import BatchScheduler
from omni.schedulers.cache import Frozen, ResultCache, content_key


class Clip(Message):
    samples: np.ndarray
    note: str = ""
    value: int = 0


class Twin(Message):
    samples: np.ndarray
    note: str = ""
    value: int = 0


class Wave(Message):
    samples: np.ndarray
    value: int
    extra: Any = None


class Embed(Encoder[Clip, Wave]):
    """Counts what it is asked to encode; notes steer it."""

    def load(self) -> None:
        self.encoded: list[int] = []
        self.gate: Gate | None = None

    def key(self, item: Clip) -> Message | None:
        if item.note == "bad key":
            raise BadRequest("no key")
        if item.note == "private":
            return None
        return Clip(samples=item.samples, note="" if item.note.startswith("same") else item.note)

    def encode(self, batch: Sequence[Clip]) -> Sequence[Wave]:
        self.encoded += [item.value for item in batch]
        if self.gate is not None:
            self.gate.passed()
        results = []
        for item in batch:
            if item.note == "fails":
                raise BadRequest("too quiet", param="audio")
            extra = object() if item.note == "odd" else None
            results.append(Wave(samples=item.samples * 2, value=item.value, extra=extra))
        return results


def clip(seed: int, note: str = "", value: int = 0, size: int = 100) -> Clip:
    return Clip(samples=np.random.default_rng(seed).random(size, np.float32), note=note, value=value)


def cached(gated: bool = False, **options: Any) -> tuple[BatchScheduler, Any]:
    stage = make(Embed, **{"cache_mb": 1.0, **options})
    stage.load()
    stage.gate = Gate() if gated else None
    return BatchScheduler(stage, mailbox()), stage


async def ask(scheduler: BatchScheduler, *clips: Clip, name: str = "r") -> list[int]:
    return await Request(scheduler, name).put(*clips).end().rest()


def test_equal_content_is_encoded_once_and_changed_content_anew() -> None:
    async def test() -> None:
        scheduler, stage = cached()
        assert await ask(scheduler, clip(1, value=1)) == [1]
        assert await ask(scheduler, clip(1, "same but for a part that key leaves out", value=2)) == [1]
        assert stage.encoded == [1]
        changed = clip(1, value=3)
        changed.samples[50] += 1e-6
        for value, other in enumerate([changed, clip(2), clip(1, size=101), clip(1, "loud")], start=3):
            other.value = value
            assert await ask(scheduler, other) == [value]
        assert stage.encoded == [1, 3, 4, 5, 6]
        stats = scheduler.stats()
        assert stats.cache_hits_total == 1
        assert stats.cache_bytes > 5 * 400
        await scheduler.close()

    run(test)


def test_hits_share_no_object() -> None:
    async def test() -> None:
        scheduler, _ = cached()
        requests = [Request(scheduler, f"r{n}").put(clip(1, value=n)) for n in range(2)]
        waves = [await request.take() for request in requests]
        waves.append(await Request(scheduler, "later").put(clip(1)).take())
        assert len({id(wave) for wave in waves}) == 3
        for wave in waves:
            wave.extra = "spoilt by its consumer"
            assert not wave.samples.flags.writeable
        hit = await Request(scheduler, "last").put(clip(1)).take()
        assert hit.extra is None
        assert np.array_equal(hit.samples, clip(1).samples * 2)
        await scheduler.close()

    run(test)


def test_an_item_without_a_key_is_never_cached() -> None:
    async def test() -> None:
        scheduler, stage = cached()
        for value in (1, 2):
            assert await ask(scheduler, clip(1, "private", value=value)) == [value]
        assert stage.encoded == [1, 2]
        await scheduler.close()

    run(test)


def test_a_key_that_raises_fails_only_its_request() -> None:
    async def test() -> None:
        scheduler, _ = cached()
        bad, good = Request(scheduler, "bad").put(clip(1, "bad key")), Request(scheduler, "good").put(clip(2)).end()
        assert isinstance(await bad.error(), BadRequest)
        assert await good.rest() == [0]
        assert is_idle(scheduler)
        await scheduler.close()

    run(test)


def test_single_flight() -> None:
    async def test() -> None:
        scheduler, stage = cached(gated=True)
        first = Request(scheduler, "first").put(clip(1, value=1)).end()
        await stage.gate.reached()
        others = [Request(scheduler, f"r{n}").put(clip(1, value=n)).end() for n in range(5)]
        while scheduler.stats().queued:
            await turns()
        stage.gate.open()
        for request in (first, *others):
            assert await request.rest() == [1]
        assert stage.encoded == [1]
        assert scheduler.stats().cache_hits_total == 5
        assert scheduler._flights == {}
        await scheduler.close()

    run(test)


def test_passengers_arrive_when_the_leader_is_cancelled_in_flight() -> None:
    async def test() -> None:
        scheduler, stage = cached(gated=True)
        leader = Request(scheduler, "leader").put(clip(1, value=1))
        await stage.gate.reached()
        passenger = Request(scheduler, "passenger").put(clip(1, value=2)).end()
        while scheduler.stats().queued:
            await turns()
        leader.cancel()
        stage.gate.open()
        assert await passenger.rest() == [1]
        assert stage.encoded == [1]
        await scheduler.close()

    run(test)


def test_passengers_arrive_when_the_leader_is_cancelled_in_the_line() -> None:
    async def test() -> None:
        scheduler, _ = cached(max_batch=3, max_wait_ms=10_000)
        leader = Request(scheduler, "leader").put(clip(1, value=1))
        passenger = Request(scheduler, "passenger").put(clip(1, value=2)).end()
        await quiet(scheduler)
        leader.cancel()
        assert scheduler.stats().queued == 1, "the flight still has a passenger"
        full = Request(scheduler, "full").put(clip(2, value=3), clip(3, value=4)).end()
        assert await passenger.rest() == [1]
        assert await full.rest() == [3, 4]
        await scheduler.close()

    run(test)


def test_a_flight_without_passengers_is_called_off() -> None:
    async def test() -> None:
        scheduler, stage = cached(max_batch=2, max_wait_ms=10_000)
        requests = [Request(scheduler, f"r{n}").put(clip(1, value=n)) for n in range(3)]
        await quiet(scheduler)
        for request in requests:
            request.cancel()
        assert is_idle(scheduler)
        assert scheduler._flights == {}
        again = Request(scheduler, "again").put(clip(1, value=7), clip(2, value=8)).end()
        assert await again.rest() == [7, 8]
        assert stage.encoded == [7, 8]
        await scheduler.close()

    run(test)


def test_cancel_during_the_look_up_leaves_nothing() -> None:
    async def test() -> None:
        scheduler, stage = cached()
        request = Request(scheduler).put(clip(1))
        await turns(2)
        request.cancel()
        await quiet(scheduler)
        assert is_idle(scheduler)
        assert scheduler._flights == {}
        assert stage.encoded == []
        await scheduler.close()

    run(test)


def test_an_error_is_for_all_passengers_and_is_not_kept() -> None:
    async def test() -> None:
        scheduler, stage = cached(gated=True)
        requests = [Request(scheduler, "leader").put(clip(1, "fails"))]
        await stage.gate.reached()
        requests.append(Request(scheduler, "passenger").put(clip(1, "fails")))
        while scheduler.stats().queued:
            await turns()
        stage.gate.open()
        for request in requests:
            error = await request.error()
            assert isinstance(error, BadRequest)
            assert error.param == "audio"
        assert isinstance(await Request(scheduler, "again").put(clip(1, "fails")).error(), BadRequest)
        assert len(stage.encoded) == 2
        assert scheduler.stats().cache_hits_total == 0
        await scheduler.close()

    run(test)


def test_a_result_that_cannot_be_kept_is_an_error_for_all_who_wait() -> None:
    async def test() -> None:
        scheduler, stage = cached(gated=True)
        requests = [Request(scheduler, "leader").put(clip(1, "odd"))]
        await stage.gate.reached()
        requests.append(Request(scheduler, "passenger").put(clip(1, "odd")))
        while scheduler.stats().queued:
            await turns()
        stage.gate.open()
        for request in requests:
            assert isinstance(await request.error(), StageFailed)
        assert is_idle(scheduler)
        await scheduler.close()

    run(test)


def test_a_hit_does_not_wait_behind_a_batch() -> None:
    async def test() -> None:
        scheduler, stage = cached(workers=1, max_batch=1)
        assert await ask(scheduler, clip(1, value=1)) == [1]
        stage.gate = Gate()
        busy = Request(scheduler, "busy").put(clip(2, value=2), clip(3, value=3)).end()
        await stage.gate.reached()
        assert await ask(scheduler, clip(1)) == [1]
        stage.gate.open()
        assert await busy.rest() == [2, 3]
        await scheduler.close()

    run(test)


def test_the_cache_keeps_its_bound_and_what_was_used_last() -> None:
    def entry(value: int) -> Frozen:
        return Frozen.of(clip(value, value=value))

    size = entry(0).nbytes
    cache = ResultCache(3 * size + size // 2)
    for n in range(3):
        cache.put(bytes([n]), entry(n))
    assert cache.get(b"\0") is not None
    cache.put(b"\3", entry(3))
    assert cache.bytes == 3 * size
    assert cache.get(b"\1") is None
    for n in (0, 2, 3):
        kept = cache.get(bytes([n]))
        assert isinstance(kept, Clip)
        assert kept.value == n
    cache.put(b"\3", entry(3))
    assert cache.bytes == 3 * size, "the same key again replaces"
    cache.put(b"\4", Frozen.of(clip(4, size=10_000)))
    assert cache.get(b"\4") is None, "over the bound by itself"
    assert cache.bytes == 3 * size


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (clip(1), Clip(samples=clip(1).samples.astype(np.float64))),
        (clip(1), Clip(samples=clip(1).samples.reshape(10, 10))),
        (clip(1, "a"), clip(1, "b")),
        (clip(1), Twin(samples=clip(1).samples)),
    ],
    ids=["dtype", "shape", "field", "type"],
)
def test_keys_tell_messages_apart(one: Message, other: Message) -> None:
    assert content_key(b"salt", one) != content_key(b"salt", other)
    assert content_key(b"salt", one) != content_key(b"pepper", one)
    assert content_key(b"salt", one) == content_key(b"salt", clip(1, one.note))  # type: ignore[attr-defined]


@pytest.mark.parametrize("changed", ["options", "revision", "stage"])
def test_keys_depend_on_options_weights_and_stage(changed: str) -> None:
    async def test() -> None:
        one = make(Embed, cache_mb=1.0)
        other = make(Embed, cache_mb=2.0 if changed == "options" else 1.0)
        if changed != "options":
            other.context = type(one.context)(
                one.context.recipe,
                "other" if changed == "stage" else one.context.stage,
                revision="abc" if changed == "revision" else "",
            )
        salts = []
        for stage in (one, other):
            scheduler = BatchScheduler(stage, mailbox())
            salts.append(scheduler._salt)
            await scheduler.close()
        assert salts[0] != salts[1]

    run(test)
