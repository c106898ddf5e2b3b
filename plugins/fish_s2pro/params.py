"""Request fields of the recipe beyond OpenAI's."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field


class SpeechParams(BaseModel):
    """Sampling and chunking of one request. Seed and references are fields that every model shares."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    temperature: Annotated[float, Field(ge=0, lt=2, description="0 is greedy in every codebook.")] = 0.8
    top_p: Annotated[float, Field(gt=0, le=1, description="Nucleus; 1 is off.")] = 0.8
    top_k: Annotated[int, Field(ge=0, le=4096, description="0 is off, 1 is greedy.")] = 30
    max_new_tokens: Annotated[
        int,
        Field(
            ge=0,
            le=30_000,
            description="Frames at most, for each batch of text; 21.5 frames are a second. 0: as the context allows.",
        ),
    ] = 1024
    chunk_length: Annotated[
        int, Field(ge=100, le=1000, description="Bytes of text that are spoken in one go; longer text is cut.")
    ] = 200
