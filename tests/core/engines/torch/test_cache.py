"""Page pool and prefix cache against a plain model of what they should do."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omni.engines.torch.pages import PagePool
from omni.engines.torch.radix import PageKeys, PrefixCache


def test_pool_refuses_what_makes_no_sense() -> None:
    pool = PagePool(2)
    page = pool.take()
    assert page is not None
    for call in (lambda: pool.release(3 - page), lambda: pool.retain(3 - page), lambda: pool.drop(page)):
        with pytest.raises(ValueError):
            call()
    pool.keep(page)
    with pytest.raises(ValueError):
        pool.keep(page)
    assert pool.take() == 3 - page
    assert pool.take() is None


class _Holder:
    def __init__(self, keys: list[bytes], pages: list[int]) -> None:
        self.keys, self.pages, self.held = keys, pages, []


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.data())
def test_any_use_keeps_the_books(data) -> None:
    """Random admissions, insertions, ends and evictions over words on a small alphabet."""
    total = data.draw(st.integers(3, 12), "pages")
    pool = PagePool(total)
    cache = PrefixCache(pool)
    contents: dict[int, tuple[bytes, ...]] = {}  # page -> the prefix whose last page it holds
    active: list[_Holder] = []
    for _ in range(data.draw(st.integers(1, 40), "operations")):
        kind = data.draw(st.sampled_from(("start", "insert", "end", "evict")))
        if kind == "start":
            word = [bytes([c]) for c in data.draw(st.lists(st.integers(0, 2), min_size=1, max_size=5))]
            found = cache.match(word)
            for depth, page in enumerate(found):
                assert contents[page] == tuple(word[: depth + 1]), "a page of another prefix"
            holder = _Holder(word, found)
            missing = len(word) - len(found)
            if pool.free + pool.evictable < missing:
                for page in found:
                    pool.release(page)
                continue
            short = missing - pool.free
            if short > 0:
                assert cache.evict(short) == short, "evictable pages must be evictable"
            for depth in range(len(found), len(word)):
                page = pool.take()
                assert page is not None
                contents[page] = tuple(word[: depth + 1])
                holder.pages.append(page)
            active.append(holder)
        elif kind == "evict":
            before = pool.evictable
            wanted = data.draw(st.integers(1, 3))
            assert cache.evict(wanted) == min(wanted, before)
        elif active:
            holder = active[data.draw(st.integers(0, len(active) - 1))]
            count = data.draw(st.integers(0, len(holder.keys)))
            holder.held += cache.insert(holder.keys[:count], holder.pages[:count])
            if kind == "end":
                active.remove(holder)
                for page in holder.pages + holder.held:
                    pool.release(page)
        users = [0] * (total + 1)
        for holder in active:
            for page in holder.pages + holder.held:
                users[page] += 1
        assert pool.refs == users
        assert pool.free + pool.used + pool.evictable == total
        assert cache.pages == sum(pool.cached)
    for holder in active:
        for page in holder.pages + holder.held:
            pool.release(page)
    assert pool.used == 0
    cache.evict(total)
    assert (pool.free, cache.pages) == (total, 0)


def test_least_recently_used_goes_first() -> None:
    pool = PagePool(4)
    cache = PrefixCache(pool)
    for word in ([b"a", b"b"], [b"c"], [b"d"]):
        pages = [pool.take() for _ in word]
        cache.insert(word, pages)
        for page in pages:
            pool.release(page)
    for page in cache.match([b"a", b"b"]):
        pool.release(page)
    assert cache.evict(2) == 2
    found = cache.match([b"a", b"b"])
    assert len(found) == 2
    assert cache.evict(1) == 0, "used pages stay"
    for page in found:
        pool.release(page)
    assert cache.evict(1) == 1
    assert len(cache.match([b"a", b"b"])) == 1, "the deeper page goes before the one above it"


def test_keys_depend_on_every_value_and_the_salt() -> None:
    columns = np.arange(24).reshape(8, 3)
    keys = PageKeys(4, b"s").upto(columns, 8)
    assert len(keys) == 2
    assert PageKeys(4, b"s").upto(columns, 7) == keys[:1]
    assert PageKeys(4, b"t").upto(columns, 8)[0] != keys[0]
    for position, row in [(0, 0), (3, 2), (5, 1)]:
        changed = columns.copy()
        changed[position, row] += 1
        other = PageKeys(4, b"s").upto(changed, 8)
        assert [a != b for a, b in zip(keys, other, strict=True)] == [position < 4, position >= 4]


def test_keys_grow_with_the_sequence() -> None:
    columns = np.arange(16).reshape(16, 1)
    keys = PageKeys(4, b"")
    assert len(keys.upto(columns, 5)) == 1
    assert keys.upto(columns, 16) == PageKeys(4, b"").upto(columns, 16)
