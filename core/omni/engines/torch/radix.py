"""The prefix cache: a radix tree whose edges are whole pages.

An edge's key is a digest of everything that determines the embeddings of its positions: token ids, every codebook
value and the salt (see :class:`PageKeys`). Two voices that share tokens but not codes share no page.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Sequence

import numpy as np

from omni.engines.torch.pages import PagePool

Key = bytes


class PageKeys:
    """Keys of the full pages of one sequence; grows with it. ``columns`` is int64 ``(T, 1 + codebooks)``. Pages within
    the first ``plain`` positions have the salt that prompts without any have."""

    def __init__(self, page_size: int, salt: bytes, plain: int = 0, plain_salt: bytes = b"") -> None:
        self._page_size = page_size
        self._salt = salt
        self._plain, self._plain_salt = plain // page_size, plain_salt
        self._keys: list[Key] = []

    def upto(self, columns: np.ndarray, positions: int) -> Sequence[Key]:
        """Keys of the full pages within the first ``positions`` columns."""
        pages = positions // self._page_size
        for index in range(len(self._keys), pages):
            part = columns[index * self._page_size : (index + 1) * self._page_size]
            digest = hashlib.blake2b(self._salt if index >= self._plain else self._plain_salt, digest_size=16)
            digest.update(np.ascontiguousarray(part).tobytes())
            self._keys.append(digest.digest())
        return self._keys[:pages]


class _Node:
    __slots__ = ("children", "key", "page", "parent", "used")

    def __init__(self, key: Key, page: int, parent: _Node | None) -> None:
        self.key = key
        self.page = page
        self.parent = parent
        self.children: dict[Key, _Node] = {}
        self.used = 0


class PrefixCache:
    """Who uses a page also uses the pages before it, so a page without users has no used page below it and the
    leaves can always be evicted first, the least recently used one before others."""

    def __init__(self, pool: PagePool) -> None:
        self._pool = pool
        self._root = _Node(b"", 0, None)
        self._clock = 0
        # Entries go stale when a node is used again or gets a child; eviction checks each one it takes.
        self._heap: list[tuple[int, int, _Node]] = []
        self._count = 0

    @property
    def pages(self) -> int:
        """Pages in the tree, used ones included."""
        return self._count

    def _touch(self, node: _Node) -> None:
        self._clock += 1
        node.used = self._clock
        if not node.children:
            heapq.heappush(self._heap, (node.used, node.page, node))
            if len(self._heap) > 64 + 4 * self._count:
                leaves = {id(n): n for _, _, n in self._heap if not n.children and self._alive(n)}
                self._heap = [(n.used, n.page, n) for n in leaves.values()]
                heapq.heapify(self._heap)

    @staticmethod
    def _alive(node: _Node) -> bool:
        return node.parent is not None and node.parent.children.get(node.key) is node

    def match(self, keys: Sequence[Key]) -> list[int]:
        """The pages of the longest known prefix, each retained for the caller."""
        node, found = self._root, []
        for key in keys:
            child = node.children.get(key)
            if child is None:
                break
            self._pool.retain(child.page)
            self._touch(child)
            found.append(child.page)
            node = child
        return found

    def insert(self, keys: Sequence[Key], pages: Sequence[int]) -> list[int]:
        """Make computed pages known. The caller uses every page of ``pages`` and goes on doing so.

        Where an equal page is known already, the known one is retained too, so that what is inserted below it
        cannot lose its prefix; gives those pages, for the caller to release together with its own.
        """
        node, held = self._root, []
        for key, page in zip(keys, pages, strict=True):
            child = node.children.get(key)
            if child is None:
                self._pool.keep(page)
                child = _Node(key, page, node)
                node.children[key] = child
                self._count += 1
            elif child.page != page:
                self._pool.retain(child.page)
                held.append(child.page)
            self._touch(child)
            node = child
        return held

    def evict(self, wanted: int) -> int:
        """Free up to ``wanted`` pages that nobody uses; gives how many."""
        freed = 0
        busy: list[tuple[int, int, _Node]] = []
        while freed < wanted and self._heap:
            entry = heapq.heappop(self._heap)
            used, _, node = entry
            if node.used != used or node.children or not self._alive(node):
                continue
            if self._pool.refs[node.page]:
                busy.append(entry)
                continue
            parent = node.parent
            assert parent is not None
            del parent.children[node.key]
            self._pool.drop(node.page)
            self._count -= 1
            freed += 1
            if parent is not self._root and not parent.children:
                heapq.heappush(self._heap, (parent.used, parent.page, parent))
        for entry in busy:
            heapq.heappush(self._heap, entry)
        return freed
