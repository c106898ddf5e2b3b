"""Request fields beyond OpenAI's."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field


class Params(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    vad_filter: Annotated[
        bool, Field(description="Leave out what is not speech before it is recognised, so that no words are invented.")
    ] = True
    beam_size: Annotated[
        int | None,
        Field(ge=1, le=10, description="Hypotheses of the beam search; 1 is greedy. Only with temperature 0."),
    ] = None
