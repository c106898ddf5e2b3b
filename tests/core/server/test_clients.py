"""The requests of real clients, byte for byte where it matters; the clients themselves are too large to install."""

from __future__ import annotations

import asyncio
import io
import json
import uuid
from collections.abc import AsyncIterator, Iterator

import httpx
import numpy as np
import openai
import pytest
from server_harness import events

WAV = b"RIFF....WAVE some speech"


def transcript(response: httpx.Response) -> dict:
    assert response.status_code == 200, response.text
    return json.loads(response.json()["text"])


def multipart(boundary: str, *parts: tuple[str, bytes]) -> bytes:
    body = b"".join(f"--{boundary}\r\n{head}\r\n\r\n".encode() + data + b"\r\n" for head, data in parts)
    return body + f"--{boundary}--\r\n".encode()


def in_chunks(body: bytes, size: int = 64) -> Iterator[bytes]:
    for start in range(0, len(body), size):
        yield body[start : start + size]


def field(name: str) -> str:
    return f'Content-Disposition: form-data; name="{name}"'


def test_openai_js_sends_a_stream_in_chunks_with_the_file_first(http):
    head = 'Content-Disposition: form-data; name="file"; filename="blob"\r\nContent-Type: application/octet-stream'
    body = multipart("----formdata-undici-1", (head, WAV), (field("model"), b"whisper-1"))
    answer = http.post(
        "/v1/audio/transcriptions",
        content=in_chunks(body),
        headers={"content-type": "multipart/form-data; boundary=----formdata-undici-1"},
    )
    assert transcript(answer)["bytes"] == len(WAV)


def test_vercel_ai_sdk(http):
    """Voice alloy and a format always; timestamps only under the name whisper-1; statistics must be numbers."""
    body = {"model": "tts-1", "input": "hi", "voice": "alloy", "response_format": "mp3", "speed": 1.0}
    assert http.post("/v1/audio/speech", json=body).status_code == 200
    answer = http.post(
        "/v1/audio/transcriptions",
        files=[
            ("file", ("audio.m4a", WAV, "audio/mp4")),
            ("model", (None, "whisper-1")),
            ("language", (None, "english")),
            ("response_format", (None, "verbose_json")),
            ("timestamp_granularities[]", (None, "segment")),
        ],
    )
    body = answer.json()
    assert transcript(answer)["language"] == "en"
    numbers = ("id", "seek", "start", "end", "temperature", "avg_logprob", "compression_ratio", "no_speech_prob")
    assert all(isinstance(segment[name], (int, float)) for segment in body["segments"] for name in numbers)


@pytest.mark.parametrize("fmt", ["mp3", "wav", "opus", "pcm"])
def test_livekit_warms_up_and_wants_events_with_any_format(http, fmt):
    assert http.get("/v1/").status_code == 200
    body = {"model": "gpt-4o-mini-tts", "input": "hi", "voice": "ash", "response_format": fmt, "speed": 1.0}
    answer = http.post("/v1/audio/speech", json=body | {"stream_format": "sse"})
    assert answer.headers["content-type"].partition(";")[0] == "text/event-stream"
    kinds = [event["type"] for event in events(answer.text)]
    assert kinds[-1] == "speech.audio.done"
    assert set(kinds[:-1]) == {"speech.audio.delta"}


def test_livekit_and_litellm_transcribe_with_verbose_json(http):
    for data in (
        {"model": "whisper-1", "response_format": "verbose_json"},
        {"model": "whisper-1", "response_format": "verbose_json", "timestamp_granularities[]": ["word", "segment"]},
    ):
        answer = http.post("/v1/audio/transcriptions", data=data, files={"file": ("file.wav", WAV, "audio/x-wav")})
        assert answer.json()["duration"] == 4.5


def test_pipecat_takes_raw_samples_at_24_khz_whatever_the_models_rate(ai):
    with ai.audio.speech.with_streaming_response.create(
        model="stereo", voice="nova", input="one two", response_format="pcm", instructions="calm", speed=1.2
    ) as response:
        samples = np.frombuffer(b"".join(response.iter_bytes(1024)), "<i2")
    assert len(samples) == pytest.approx(0.2 / 1.2 * 24000, abs=2)


def test_wyoming_tells_backends_apart_by_their_paths(http):
    assert http.get("/v1/readyz").status_code == 404
    assert http.get("/v1/test").status_code == 404
    health = http.get("/health")
    assert health.status_code == 200
    assert health.text.strip() not in ("OK", "ok")
    names = [voice["name"] for voice in http.get("/v1/models/tts-1").json()["voices"]]
    assert "alloy" in names
    with http.stream(
        "POST", "/v1/audio/speech", json={"model": "tts-1", "voice": names[0], "input": "hi", "response_format": "wav"}
    ) as answer:
        wav = b"".join(answer.iter_raw())
    assert wav[40:44] == b"\xff\xff\xff\xff"
    assert len(wav) == 44 + 4800
    data = {"model": "whisper-1", "language": "en", "response_format": "json", "vad_filter": "false"}
    assert http.post("/v1/audio/transcriptions", data=data, files={"file": ("recording.wav", WAV)}).status_code == 200


def test_open_webui(http):
    assert http.get("/v1/audio/models").json()["models"][0]["id"] == "tone"
    voices = http.get("/v1/audio/voices").json()["voices"]
    assert all(isinstance(voice["id"], str) and isinstance(voice["name"], str) for voice in voices)
    spoken = http.post("/v1/audio/speech", json={"input": "hi", "voice": "alloy", "model": "tts-1"})
    assert spoken.headers["content-type"] == "audio/mpeg"
    name = f"{uuid.uuid4()}.webm"
    boundary = uuid.uuid4().hex
    head = f'Content-Disposition: form-data; name="file"; filename="{name}"'
    kind = "Content-Type: text/plain; charset=utf-8"
    body = multipart(
        boundary, (f"{kind}\r\n{field('model')}", b"whisper-1"), (f"{kind}\r\n{field('language')}", b"en"), (head, WAV)
    )
    answer = http.post(
        "/v1/audio/transcriptions",
        content=in_chunks(body, 1000),
        headers={"content-type": f"multipart/form-data; boundary={boundary}"},
    )
    assert transcript(answer)["language"] == "en"


def test_speech_recognition_and_aider(ai):
    named = io.BytesIO(WAV)
    named.name = "SpeechRecognition_audio.wav"
    assert json.loads(ai.audio.transcriptions.create(file=named, model="whisper-1").text)["bytes"] == len(WAV)


def test_the_openai_clients_lists_booleans_and_nameless_files(ai):
    answer = ai.audio.transcriptions.create(
        file=io.BytesIO(WAV),
        model="gpt-transcribe",
        languages=["en"],
        keywords=[],
        include=[],
        stream=False,
        extra_body={"vad_filter": True},
    )
    heard = json.loads(answer.text)
    assert heard["language"] == "en"
    assert heard["params"] == {"vad_filter": True}


def test_the_async_client_streams(served):
    async def speak() -> int:
        client = openai.AsyncOpenAI(base_url=served.url + "/v1", api_key="x", max_retries=0)
        request = client.audio.speech.with_streaming_response.create(
            model="tts-1", voice={"id": "high"}, input="one two three", response_format="pcm"
        )
        async with client, request as response:
            chunks: AsyncIterator[bytes] = response.iter_bytes()
            return sum([len(chunk) async for chunk in chunks])

    assert asyncio.run(speak()) == 2 * 7200
