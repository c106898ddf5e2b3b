"""Options of encoders whose faults show only where requests share a batch."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from omni import EncoderOptions


class Together(EncoderOptions):
    """Batches form however slowly the machine brings requests."""

    max_wait_ms: Annotated[float, Field(ge=0, le=10_000)] = 50.0
