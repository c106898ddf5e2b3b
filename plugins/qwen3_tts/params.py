"""Request fields of the recipes beyond OpenAI's. What is left out has the value of the checkpoint's
``generation_config.json``; the published ones are given here."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

TopK = Annotated[int, Field(ge=0, le=4096)]
TopP = Annotated[float, Field(gt=0, le=1)]
Temperature = Annotated[float, Field(ge=0, lt=2)]


class DesignParams(BaseModel):
    """Sampling of one request. Language, instructions, seed and references are fields that every model shares."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    temperature: Annotated[Temperature | None, Field(description="0 is greedy in every codebook. Published: 0.9.")] = (
        None
    )
    top_k: Annotated[TopK | None, Field(description="0 is off, 1 is greedy in every codebook. Published: 50.")] = None
    top_p: Annotated[TopP | None, Field(description="Nucleus of the first codebook; 1 is off. Published: 1.")] = None
    repetition_penalty: Annotated[
        float | None,
        Field(ge=0.5, le=2, description="Divides scores of first codes that have occurred; 1 is off. Published: 1.05."),
    ] = None
    subtalker_temperature: Annotated[
        Temperature | None, Field(description="Of the other codebooks; 0 is greedy. Published: 0.9.")
    ] = None
    subtalker_top_k: Annotated[TopK | None, Field(description="Of the other codebooks. Published: 50.")] = None
    subtalker_top_p: Annotated[TopP | None, Field(description="Of the other codebooks. Published: 1.")] = None
    max_new_tokens: Annotated[
        int | None,
        Field(
            ge=1,
            le=8192,
            description="Frames at most, for each piece of text; 12.5 are a second. Default: as the text's length "
            "allows, far above what speaking it takes.",
        ),
    ] = None
    non_streaming_mode: Annotated[
        bool | None,
        Field(
            description="true: the whole text is read before the first frame; false: a token with each frame. Default: "
            "false for cloned voices, true for others."
        ),
    ] = None


class SpeechParams(DesignParams):
    """Sampling and chunking of one request."""

    chunk_length: Annotated[
        int,
        Field(
            ge=50,
            le=2000,
            description="Characters that are spoken in one go; longer text is cut at sentence ends. So many take less "
            "than the 8,192 frames of a generation in any language.",
        ),
    ] = 600
