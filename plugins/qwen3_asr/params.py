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
