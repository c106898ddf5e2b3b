"""Options of the embedded engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from omni.errors import ConfigError


class TorchOptions(BaseModel):
    """Options of the engine ``torch``. Device and dtype are the model's, not the engine's.

    ``kv_tokens`` is the size of the KV cache in positions; None takes ``kv_memory`` of the memory that the device has
    left beside the model (on CPU of what the machine or its container has left; it is touched as it is first used).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    page_size: Annotated[int, Field(ge=1, le=1024)] = 16
    """Positions per page; the prefix cache shares whole pages."""
    max_running: Annotated[int, Field(ge=1, le=4096)] = 32
    """Requests that are decoded together."""
    max_waiting: Annotated[int, Field(ge=0)] = 1024
    """Requests that may wait; one more is refused with :class:`omni.errors.Busy`."""
    kv_tokens: Annotated[int | None, Field(ge=1)] = None
    kv_memory: Annotated[float, Field(gt=0, lt=1)] = 0.5
    prefill_chunk: Annotated[int, Field(ge=1)] = 512
    """Prompt positions computed between two decode steps, over all requests."""
    prefix_cache: bool = True
    cuda_graph: bool = True
    """Replay the decode step as a CUDA graph; has no effect on other devices."""
    capture_tokens: Annotated[int, Field(ge=0)] = 1024
    """Contexts up to which graphs are captured at start, for all batch sizes; longer ones when they are first met,
    which holds up the requests of that moment."""
    max_candidates: Annotated[int, Field(ge=2)] = 64
    """Largest ``top_k`` that is served without sorting the whole vocabulary."""


def parse_options(options: Mapping[str, Any]) -> TorchOptions:
    """Raises :class:`ConfigError` naming every option that is unknown or out of range."""
    try:
        return TorchOptions.model_validate(dict(options))
    except ValidationError as error:
        lines = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise ConfigError(f"options of the torch engine: {lines}") from error
