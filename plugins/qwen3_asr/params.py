"""Request fields beyond OpenAI's."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field


class Params(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    max_new_tokens: Annotated[
        int | None,
        Field(
            ge=1,
            le=32_768,
            description="Tokens that are written at most for each span of the audio; by default more than it can hold.",
        ),
    ] = None


class LiveParams(Params):
    """And those of a turn of a live transcript (:mod:`qwen3_asr.live`), which no client may set: what was ``written``,
    how many tokens of it to take back, whether no more sound comes. Its audio is float32 samples."""

    written: str | None = None
    rollback: int = 0
    finishing: bool = False
