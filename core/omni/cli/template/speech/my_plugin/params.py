"""What a request may carry beyond the fields that every speech request has."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field


class Params(BaseModel):
    """omni checks requests against this model and refuses what is unknown or out of range."""

    model_config = ConfigDict(extra="forbid")

    pitch: Annotated[float, Field(ge=0.5, le=2.0, description="Factor on the frequency of every note.")] = 1.0
