"""What can be set about the server; the keys of ``server:`` in a configuration file."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr

MIB = 1 << 20

_Positive = Annotated[float, Field(gt=0)]


def _is_origin(text: str) -> str:
    if not re.fullmatch(r"\*|[a-z][a-z0-9+.-]*://[!-.0-~]+", text):
        raise ValueError("must be '*' or an origin such as https://host:port, without a path")
    return text


_Origin = Annotated[str, AfterValidator(_is_origin)]


class ServerSettings(BaseModel):
    """Sizes are in MiB, times in seconds. Together the limits bound what any number of clients can take."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    api_key: SecretStr | None = Field(
        default=None, min_length=1, description="Clients send it as a Bearer token; /health and /ready stay open."
    )
    cors_origins: tuple[_Origin, ...] = Field(
        default=(),
        description="Origins (https://host:port) whose pages may use the server from a browser; '*' for any.",
    )
    aliases: bool = Field(default=True, description="Understand OpenAI's names of models and voices.")
    max_upload_mb: _Positive = Field(default=1024, description="One uploaded file.")
    max_spool_mb: _Positive = Field(
        default=8192, description="All uploads at once, on disk in TMPDIR; one more gets 429."
    )
    max_json_mb: _Positive = Field(default=64, description="One JSON body, audio in base64 included.")
    max_body_memory_mb: _Positive = Field(
        default=512,
        description="What all requests at once hold in memory: JSON bodies and what is made of them, parts of forms, "
        "references; one more gets 429.",
    )
    max_reference_mb: _Positive = Field(default=20, description="One reference audio, decoded from base64 or fetched.")
    max_references: Annotated[int, Field(ge=1)] = 8
    body_seconds: _Positive = Field(
        default=60, description="Longest pause of a client while it sends its request, or all since the last fast part."
    )
    stall_seconds: _Positive = Field(default=300, description="Longest time a client may take nothing of an answer.")
    fetch_seconds: _Positive = Field(default=15, description="Fetching a reference from its address.")
    allow_private_urls: bool = Field(
        default=False, description="Fetch references from private addresses too: an open door to the local network."
    )
    drain_seconds: Annotated[float, Field(ge=0)] = Field(
        default=30, description="How long requests under way may go on after SIGINT or SIGTERM."
    )
