"""Page accounting of the KV cache: which pages are free, and how many requests use each. No tensors here."""

from __future__ import annotations


class PagePool:
    """Pages ``1 .. pages``; page 0 is nobody's: padded rows of a batch write there.

    A page is free, used (``refs`` > 0), or kept for the prefix cache (``refs`` 0 and ``cached``).
    """

    def __init__(self, pages: int) -> None:
        self.pages = pages
        self.refs = [0] * (pages + 1)
        self.cached = [False] * (pages + 1)
        self._free = list(range(pages, 0, -1))
        self._idle_cached = 0

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def evictable(self) -> int:
        """Pages that only the prefix cache holds."""
        return self._idle_cached

    @property
    def used(self) -> int:
        return self.pages - self.free - self.evictable

    def take(self) -> int | None:
        """A free page with one user, or None."""
        if not self._free:
            return None
        page = self._free.pop()
        self.refs[page] = 1
        return page

    def retain(self, page: int) -> None:
        if self.refs[page] == 0:
            if not self.cached[page]:
                raise ValueError(f"page {page} is free")
            self._idle_cached -= 1
        self.refs[page] += 1

    def release(self, page: int) -> None:
        if self.refs[page] <= 0:
            raise ValueError(f"page {page} has no user")
        self.refs[page] -= 1
        if self.refs[page] == 0:
            if self.cached[page]:
                self._idle_cached += 1
            else:
                self._free.append(page)

    def keep(self, page: int) -> None:
        """The prefix cache holds this used page from now on."""
        if self.refs[page] <= 0 or self.cached[page]:
            raise ValueError(f"page {page} cannot be kept")
        self.cached[page] = True

    def drop(self, page: int) -> None:
        """The prefix cache gives up a page that nobody uses."""
        if self.refs[page] or not self.cached[page]:
            raise ValueError(f"page {page} cannot be dropped")
        self.cached[page] = False
        self._idle_cached -= 1
        self._free.append(page)
