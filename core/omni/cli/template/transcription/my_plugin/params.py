"""What a request may carry beyond the fields that every transcription request has."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field


class Params(BaseModel):
    """omni checks requests against this model and refuses what is unknown or out of range."""

    model_config = ConfigDict(extra="forbid")

    threshold: Annotated[float, Field(ge=0.001, le=0.5, description="What is quieter (RMS) is silence.")] = 0.01
