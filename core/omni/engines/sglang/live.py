"""What the server holds of a request that SGLang has."""

from __future__ import annotations

from collections import deque

from omni.engines.base import Sink, StepOutput


class LiveRequest:
    """One request; also its handle. ``waiting`` are steps that its sink has no room for yet; it has ``ended`` when
    nothing of it is left in SGLang."""

    def __init__(self, request_id: str, number: int, sink: Sink, prompt_tokens: int) -> None:
        self.request_id = request_id
        self.number = number
        self.sink = sink
        self.prompt_tokens = prompt_tokens
        self.waiting: deque[StepOutput] = deque()
        self.steps = 0
        self.retractions = 0
        self.ended = False
        self.aborted = False
