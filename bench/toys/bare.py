"""The floor: FastAPI and nothing else."""

from __future__ import annotations

from collections.abc import AsyncIterator

from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse

CHUNKS, CHUNK = 20, bytes(4096)
app = FastAPI()


async def chunks() -> AsyncIterator[bytes]:
    for _ in range(CHUNKS):
        yield CHUNK


@app.post("/v1/audio/speech")
async def speech(request: Request) -> StreamingResponse:
    await request.json()
    return StreamingResponse(chunks(), media_type="audio/pcm")


@app.get("/ready")
async def ready() -> dict[str, str]:
    return {}
