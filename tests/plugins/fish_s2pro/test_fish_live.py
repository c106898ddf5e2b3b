"""Fish's WebSocket: text in pieces, sound while more is written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import numpy as np
import ormsgpack
import pytest
from fish_serving import FRAME, PATIENCE, Running, base64_of, eventually, samples_of, voice
from fishaudio import FishAudio, ReferenceAudio, TTSConfig
from fishaudio.exceptions import WebSocketError
from fishaudio.types import FlushEvent
from httpx_ws import WebSocketDisconnect, WebSocketSession, WebSocketUpgradeError, connect_ws

from omni.audio import decode

pytestmark = pytest.mark.xdist_group("fish_http")

TEXT = "Hello world, this is a test."
LONG = (
    "The old lighthouse keeper climbed the narrow stairs every evening before the fog came in. Fresh bread and strong "
    "coffee are the best reasons to get up early. My sister repairs violins in a small workshop."
)
CONFIG = TTSConfig(temperature=0, max_new_tokens=8, format="pcm", top_p=0.8, chunk_length=100)


@pytest.fixture
def sdk(served: Running) -> FishAudio:
    return FishAudio(api_key="any", base_url=served.url)


def wanted(served: Running, text: str, **fields: Any) -> np.ndarray:
    return served.speak(input=text, temperature=0, max_new_tokens=8, chunk_length=100, **fields)


def assert_same(found: np.ndarray, want: np.ndarray) -> None:
    assert len(found) == len(want)
    assert np.abs(found - want).max() <= 2


@contextmanager
def session(served: Running, **headers: str) -> Iterator[WebSocketSession]:
    with (
        httpx.Client(base_url=served.url, timeout=PATIENCE) as client,
        connect_ws("/v1/tts/live", client=client, headers=headers) as socket,
    ):
        yield socket


def send(socket: WebSocketSession, **event: Any) -> None:
    socket.send_bytes(ormsgpack.packb(event))


def begin(socket: WebSocketSession, **fields: Any) -> None:
    request = {"text": "", "temperature": 0, "max_new_tokens": 8, "format": "pcm", "chunk_length": 100, **fields}
    send(socket, event="start", request=request)


def receive(socket: WebSocketSession) -> dict[str, Any]:
    return ormsgpack.unpackb(socket.receive_bytes(timeout=PATIENCE))


def rest(socket: WebSocketSession) -> tuple[bytes, dict[str, Any]]:
    """All sound until the session ends, and its last event."""
    sound = b""
    while (event := receive(socket))["event"] == "audio":
        sound += event["audio"]
    with pytest.raises(WebSocketDisconnect):
        socket.receive_bytes(timeout=PATIENCE)
    return sound, event


def test_pieces_of_a_text_are_one_text(served, sdk) -> None:
    def pieces() -> Iterator[str]:
        for at in range(0, len(LONG), 7):
            yield LONG[at : at + 7]

    found = samples_of(b"".join(sdk.tts.stream_websocket(pieces(), config=CONFIG)))
    assert_same(found, wanted(served, LONG))
    assert len(found) == 3 * 8 * FRAME


def test_flush_ends_a_text(served, sdk) -> None:
    def pieces() -> Iterator[Any]:
        yield "Hello "
        yield "world."
        yield FlushEvent()
        yield FlushEvent()
        yield "Good morning."

    found = samples_of(b"".join(sdk.tts.stream_websocket(pieces(), config=CONFIG)))
    assert_same(found, np.concatenate([wanted(served, "Hello world."), wanted(served, "Good morning.")]))


@pytest.mark.parametrize("fmt", ["mp3", "opus", "wav"])
def test_a_session_is_one_file(sdk, fmt) -> None:
    def pieces() -> Iterator[Any]:
        yield "Hello world."
        yield FlushEvent()
        yield "Good morning."

    data = b"".join(sdk.tts.stream_websocket(pieces(), config=CONFIG, format=fmt))
    assert 0 <= len(decode(data, 44100, mono=True)) - 16 * FRAME <= 5000
    assert data.count(b"RIFF") == (fmt == "wav")


def test_a_voice_speaks_sentences_while_more_is_written(served) -> None:
    """Nobody has asked for it yet: there is neither a flush nor a stop."""
    audio = voice(0.3, 170.0)
    with session(served) as socket:
        begin(socket, references=[{"audio": audio, "text": "Hm."}])
        send(socket, event="text", text=LONG[:60])
        send(socket, event="text", text=LONG[60:])
        first = receive(socket)
        assert first["event"] == "audio"
        send(socket, event="stop")
        sound, last = rest(socket)
    assert last == {"event": "finish", "reason": "stop"}
    reference = [{"audio": base64_of(audio), "text": "Hm."}]
    sentences = [sentence + "." for sentence in LONG.rstrip(".").split(". ")]
    want = [wanted(served, sentence, references=reference) for sentence in sentences]
    assert_same(samples_of(first["audio"] + sound), np.concatenate(want))


def test_the_sdk_s_voice(served, sdk) -> None:
    audio = voice(0.3, 170.0)
    pieces = sdk.tts.stream_websocket([TEXT], references=[ReferenceAudio(audio=audio, text="Hm.")], config=CONFIG)
    want = wanted(served, TEXT, references=[{"audio": base64_of(audio), "text": "Hm."}])
    assert_same(samples_of(b"".join(pieces)), want)


def test_text_may_come_with_the_start_or_not_at_all(served) -> None:
    with session(served) as socket:
        begin(socket, text="Hello world.")
        send(socket, event="stop")
        sound, _ = rest(socket)
    assert_same(samples_of(sound), wanted(served, "Hello world."))
    with session(served) as socket:
        begin(socket)
        send(socket, event="text", text=" ")
        send(socket, event="stop")
        assert rest(socket) == (b"", {"event": "finish", "reason": "stop"})


def test_what_is_wrong_is_said(served) -> None:
    def ends(*events: bytes | dict[str, Any], status: int = 400, **headers: str) -> str:
        with session(served, **headers) as socket:
            for event in events:
                socket.send_bytes(event if isinstance(event, bytes) else ormsgpack.packb(event))
            sound, last = rest(socket)
        assert sound == b""
        assert (last["event"], last["reason"], last["status"]) == ("finish", "error", status)
        return last["message"]

    good = {"event": "start", "request": {"text": ""}}
    assert "start" in ends({"event": "text", "text": "x"})
    assert "start" in ends({"event": "start"})
    assert "msgpack" in ends(b"\xc1")
    assert "map" in ends({"text": "x"})
    assert "'temperature'" in ends({"event": "start", "request": {"text": "", "temperature": 9}})
    assert "'references'" in ends({"event": "start", "request": {"text": "", "reference_id": "x"}})
    assert "unknown" in ends(good, {"event": "sing"})
    assert "string" in ends(good, {"event": "text", "text": 5})
    assert "spoken" in ends(good, {"event": "text", "text": "?!"}, {"event": "flush"})
    assert "100000" in ends(good, {"event": "text", "text": "a" * 100_001})
    assert "s9-max" in ends(good, status=404, model="s9-max")
    with session(served) as socket:
        socket.send_text("hello")
        assert "binary" in rest(socket)[1]["message"]


def test_the_sdk_notices_an_error(sdk) -> None:
    with pytest.raises(WebSocketError):
        list(sdk.tts.stream_websocket([TEXT], reference_id="x", config=CONFIG))


def test_a_client_that_leaves_ends_its_request(served) -> None:
    before = served.metric("omni_pipeline_requests_total", outcome="cancelled")
    with session(served) as socket:
        begin(socket, text=TEXT, max_new_tokens=3000, temperature=0.8, seed=1)
        send(socket, event="flush")
        assert receive(socket)["event"] == "audio"
    assert eventually(lambda: served.metric("omni_pipeline_requests_total", outcome="cancelled") == before + 1)
    assert served.metric("omni_active") == 0


def test_the_key_is_asked_for(start) -> None:
    server = start(["fish-s2-pro-random"], weights=(), api_key="secret")
    with pytest.raises(WebSocketUpgradeError), session(server):
        pass
    with session(server, authorization="Bearer secret") as socket:
        send(socket, event="start", request={"text": "Hi.", "max_new_tokens": 1, "format": "pcm"})
        send(socket, event="stop")
        assert len(samples_of(rest(socket)[0])) == FRAME
