"""One request on the host: its columns, its pages, where it stands."""

from __future__ import annotations

import enum
import itertools

import numpy as np

from omni.engines.base import Prompt, SamplingParams, Sink
from omni.engines.inputs import columns_of, content_salt, seed_of
from omni.engines.torch.radix import Key, PageKeys


class Phase(enum.Enum):
    WAITING = "waiting"
    PREFILL = "prefill"
    DECODE = "decode"
    DONE = "done"


_order = itertools.count()
_NO_SALT = content_salt(Prompt(tokens=()))


class Request:
    """What the engine knows of a request; also its handle.

    ``columns`` int64 ``(T, 1 + codebooks)``: prompt, then generated. Of ``length`` columns the first ``computed``
    have their keys and values in ``pages``; the last column is always the input of a decode step.
    """

    def __init__(
        self,
        request_id: str,
        prompt: Prompt,
        params: SamplingParams,
        sink: Sink,
        *,
        codebooks: int,
        page_size: int,
    ) -> None:
        given = columns_of(prompt, codebooks)
        self.columns = np.zeros((len(given) + 64, 1 + codebooks), np.int64)
        self.columns[: len(given)] = given
        self.request_id = request_id
        self.order = next(_order)
        self.prompt, self.params, self.sink = prompt, params, sink
        self.seed = seed_of(params)
        self.prompt_length = self.length = len(given)
        self.phase = Phase.WAITING
        self.row = -1
        self.pages: list[int] = []
        self.held: list[int] = []
        self.computed = 0
        self.cached_tokens = -1
        self.has_room = True
        self.alone = False
        self.aborted = False
        self._keys = PageKeys(page_size, content_salt(prompt), prompt.plain, _NO_SALT)

    @property
    def generated(self) -> int:
        return self.length - self.prompt_length

    def keys(self, positions: int) -> list[Key]:
        return list(self._keys.upto(self.columns, positions))

    def append(self, column: np.ndarray) -> None:
        if self.length == len(self.columns):
            more = np.zeros_like(self.columns[: max(64, self.length // 2)])
            self.columns = np.concatenate((self.columns, more))
        self.columns[self.length] = column
        self.length += 1
