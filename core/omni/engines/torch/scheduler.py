"""Who runs: admission, chunked prefill, preemption. Pure accounting on the host, no tensors.

Order is arrival. When pages or rows run out, paused requests (their client does not read) give theirs up first,
then the youngest; so the oldest request that can run always does, and every request ends. A preempted request
keeps its columns and goes on later from the same step.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass

from omni.engines.torch.options import TorchOptions
from omni.engines.torch.pages import PagePool
from omni.engines.torch.radix import PrefixCache
from omni.engines.torch.request import Phase, Request


@dataclass(frozen=True)
class Chunk:
    """Positions ``start`` to ``stop`` of ``request`` are to be computed."""

    request: Request
    start: int
    stop: int


class Scheduler:
    def __init__(self, options: TorchOptions, pages: int) -> None:
        self._page_size = options.page_size
        self._prefill_chunk = options.prefill_chunk
        self.pool = PagePool(pages)
        self._cache = PrefixCache(self.pool) if options.prefix_cache else None
        self._rows = list(range(options.max_running - 1, -1, -1))
        self.batch_limit = options.max_running
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.preemptions = 0
        self.prefix_hits = 0
        self.prompt_tokens = 0

    def add(self, request: Request) -> None:
        request.phase = Phase.WAITING
        bisect.insort(self.waiting, request, key=lambda r: r.order)

    # Pages and rows -----------------------------------------------------------------------------------------

    def _pages_for(self, positions: int) -> int:
        return -(-positions // self._page_size)

    def _victim(self, asking: Request, *, paused_only: bool) -> Request | None:
        paused = [r for r in self.running if not r.has_room and r is not asking]
        if paused:
            return paused[-1]
        if paused_only or self.running[-1] is asking:
            return None
        return self.running[-1]

    def _take_pages(self, request: Request, count: int, *, reserve: bool) -> bool:
        """Give ``request`` ``count`` more pages, all or none, at the cost of paused requests if need be.

        ``reserve``: this is an admission. It leaves one page for each running request, which will soon need it, and
        never preempts one that can run.
        """
        while self.pool.free + self.pool.evictable < count + (len(self.running) if reserve else 0):
            victim = self._victim(request, paused_only=reserve)
            if victim is None:
                return False
            self.preempt(victim)
        if self._cache is not None and self.pool.free < count:
            self._cache.evict(count - self.pool.free)
        for _ in range(count):
            page = self.pool.take()
            assert page is not None
            request.pages.append(page)
        return True

    def _publish(self, request: Request) -> None:
        """Make the full pages computed so far known to the prefix cache."""
        if self._cache is not None:
            keys = request.keys(request.computed)
            request.held += self._cache.insert(keys, request.pages[: len(keys)])

    def _release(self, request: Request) -> None:
        # From the end, so that of equally old pages the deepest is evicted first.
        for page in reversed(request.pages + request.held):
            self.pool.release(page)
        request.pages, request.held, request.computed = [], [], 0
        if request.row >= 0:
            self._rows.append(request.row)
            request.row = -1

    def preempt(self, request: Request) -> None:
        """Take everything from a running request and let it wait."""
        self.running.remove(request)
        self._publish(request)
        self._release(request)
        self.add(request)
        self.preemptions += 1

    def remove(self, request: Request) -> None:
        """The request has ended, in whatever way."""
        if request.phase is Phase.WAITING:
            self.waiting.remove(request)
        elif request.phase is not Phase.DONE:
            self.running.remove(request)
            self._publish(request)
        self._release(request)
        request.phase = Phase.DONE

    # One round ----------------------------------------------------------------------------------------------

    def admit(self) -> None:
        """Move waiting requests into rows, oldest first; one that does not fit holds back the younger ones."""
        for request in [r for r in self.waiting if r.has_room]:
            if not self._rows:
                victim = self._victim(request, paused_only=True)
                if victim is None:
                    return
                self.preempt(victim)
            reusable = (request.length - 1) // self._page_size
            if self._cache is not None:
                request.pages = self._cache.match(request.keys(request.length - 1)[:reusable])
            request.computed = len(request.pages) * self._page_size
            missing = self._pages_for(request.length) - len(request.pages)
            if not self._take_pages(request, missing, reserve=True):
                self._release(request)
                return
            if request.cached_tokens < 0:
                request.cached_tokens = request.computed
                self.prefix_hits += request.computed
                self.prompt_tokens += request.prompt_length
            self.waiting.remove(request)
            request.row = self._rows.pop()
            request.phase = Phase.PREFILL
            bisect.insort(self.running, request, key=lambda r: r.order)

    def prefill(self) -> list[Chunk]:
        """This round's share of the prompts, oldest first. The last column is left to the decode step."""
        budget, chunks = self._prefill_chunk, []
        for request in self.running:
            count = min(budget, request.length - 1 - request.computed)
            if request.phase is Phase.PREFILL and count > 0:
                chunks.append(Chunk(request, request.computed, request.computed + count))
                budget -= count
        return chunks

    def prefilled(self, chunk: Chunk) -> None:
        chunk.request.computed = chunk.stop
        if chunk.stop == chunk.request.length - 1:
            self._publish(chunk.request)

    def ready(self) -> list[Request]:
        """Requests whose prompt is computed and which have not joined the decode batch yet."""
        return [r for r in self.running if r.phase is Phase.PREFILL and r.computed == r.length - 1]

    def decode(self) -> list[Request]:
        """The requests of this decode step, each with a page for the position it writes."""
        batch: list[Request] = []
        candidates = [r for r in self.running if r.phase is Phase.DECODE and r.has_room]
        suspects = [r for r in candidates if r.alone]
        for request in suspects[:1] or candidates[: self.batch_limit]:
            # An older one of this loop may have preempted this one.
            if request.phase is not Phase.DECODE:
                continue
            missing = self._pages_for(request.length) - len(request.pages)
            if missing > 0 and not self._take_pages(request, missing, reserve=False):
                self.preempt(request)
                continue
            batch.append(request)
        return batch

    @property
    def paused(self) -> int:
        return sum(not r.has_room for r in self.running)
