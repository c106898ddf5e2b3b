"""What an engine pushes into, in tests."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np


class Sink:
    """Collects a request's steps; never full."""

    def __init__(self) -> None:
        self.outputs: list[Any] = []
        self.error: Exception | None = None
        self.ended = threading.Event()

    def room(self) -> int:
        return 1

    def push(self, output: Any) -> None:
        self.outputs.append(output)

    def finish(self) -> None:
        self.ended.set()

    def fail(self, error: Exception) -> None:
        self.error = error
        self.ended.set()

    def on_room(self, wake: Any) -> None:
        pass

    def result(self) -> tuple[np.ndarray, str]:
        """Codes ``(codebooks, steps)`` without a step that only ends, and why the generation ended."""
        assert self.ended.wait(60), "the request did not end"
        if self.error is not None:
            raise self.error
        codes = [o.codes for o in self.outputs if o.codes is not None]
        return np.stack(codes, 1) if codes else np.zeros((0, 0), int), self.outputs[-1].finish_reason

    def tokens(self) -> tuple[list[int], str]:
        """The same of a model of text alone."""
        codes, reason = self.result()
        return [int(code) for code in codes[0]] if codes.size else [], reason
