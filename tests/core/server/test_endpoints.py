"""What plugins make endpoints of; and models whose rate is not the recipe's."""

from __future__ import annotations

import json
import threading
import wave
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO

import endpoint_toys
import httpx
import msgspec
import numpy as np
import pytest
from server_harness import Raw, Running, eventually

from omni.config import configure
from omni.plugins import Plugins
from omni.server.openai_names import model_aliases
from omni.server.settings import ServerSettings
from omni.service import Service


@pytest.fixture
def toys(start) -> Running:
    async def load() -> Service:
        plugins = Plugins.load(points=[])
        plugins.add("endpoints", endpoint_toys.Plugin)
        recipes = [endpoint_toys.TONE, endpoint_toys.LOW, endpoint_toys.STEREO, endpoint_toys.HEAR]
        return await Service.launch(configure(recipes), plugins, aliases=model_aliases(ServerSettings()))

    return start(factory=load, max_json_mb=1, max_upload_mb=1, allow_private_urls=True)


def post(toys: Running, path: str, **options) -> httpx.Response:
    return httpx.post(toys.url + path, timeout=20, **options)


# Endpoints --------------------------------------------------------------------------------------------------------


def test_it_speaks_as_the_server_s_own_endpoint_does(toys) -> None:
    answer = post(toys, "/v1/say", json={"words": "one two", "times": 2})
    assert answer.status_code == 200
    assert answer.headers["x-times"] == "2"
    assert answer.headers["x-sample-rate"] == "24000"
    body = {"model": "tone", "input": "one two one two", "response_format": "pcm"}
    assert answer.content == post(toys, "/v1/audio/speech", json=body).content
    assert toys.metric("omni_http_requests_total", endpoint="/v1/say", status="200", model="tone") == 1


def test_a_speaker_asks_an_address_once(toys) -> None:
    pytest.importorskip("wsproto")
    asked: list[str] = []

    class Voice(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(bytes(100_000))

        def log_message(self, *_: object) -> None:
            pass

    memory = toys.app.state.runtime.memory
    before = memory._free
    with ThreadingHTTPServer(("127.0.0.1", 0), Voice) as web:
        thread = threading.Thread(target=web.serve_forever)
        thread.start()
        client = Raw(toys.port)
        client.websocket(f"/v1/talk?reference=http://127.0.0.1:{web.server_address[1]}/voice.wav")
        sound = client.read()
        web.shutdown()
        thread.join()
    assert len(sound) > 2 * 4800
    assert asked == ["/voice.wav"]
    assert eventually(lambda: memory._free == before)


def test_msgpack_is_bounded_as_json_is(toys) -> None:
    packed = msgspec.msgpack.encode({"words": "one two"})
    body = {"model": "tone", "input": "one two", "response_format": "pcm"}
    assert post(toys, "/v1/packed", content=packed).content == post(toys, "/v1/audio/speech", json=body).content
    bomb = msgspec.msgpack.encode({"words": [{}] * 20_000})
    for content, needle in ((bomb, "at most 10000 values"), (b"\x91\x01", "map"), (packed[:-1], "not valid msgpack")):
        refused = post(toys, "/v1/packed", content=content)
        assert refused.status_code == 400
        assert needle in refused.json()["error"]["message"]
    assert post(toys, "/v1/say", content=b'{"words": [' + b"{}," * 20_000 + b"{}]}").status_code == 400


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        (b'{"words": "a", "times": 4}', 400, "times"),
        (b'{"words": "a", "times": "2"}', 400, "times"),
        (b'{"words": "a", "more": 1}', 400, "more"),
        (b"{}", 400, "words"),
        (b"[]", 400, None),
        (b'{"words": "REFUSE"}', 400, "input"),
        (b'{"words": "BOOM"}', 500, None),
        (b" " * (1 << 20) + b"{}", 413, None),
    ],
)
def test_errors_are_the_server_s_envelope_and_the_plugin_s(toys, body, status, param) -> None:
    for path in ("/v1/say", "/v1/say-plainly"):
        answer = post(toys, path, content=body)
        assert answer.status_code == status
        said = answer.json()
        assert said["error"]["param"] == param
        assert ("why" in said) == (path == "/v1/say")
        assert answer.headers["x-request-id"]


def test_a_form_may_hold_several_files(toys) -> None:
    big = b"x" * 300_000
    answer = post(
        toys, "/v1/form", data={"text": "wörter"}, files=[("a", ("a.wav", big)), ("b", ("b", b"")), ("a", b"2")]
    )
    assert answer.json() == {
        "type": "multipart/form-data",
        "parts": [["text", 6, False], ["a", 300_000, True], ["b", 0, True], ["a", 1, True]],
    }


@pytest.mark.parametrize(
    ("body", "boundary"),
    [
        (b"", "b"),
        (b"no form", "b"),
        (b'--b\r\ncontent-disposition: form-data; name="a"\r\n\r\nx', "b"),
        (b"--b\r\ncontent-disposition: form-data\r\n\r\nx\r\n--b--\r\n", "b"),
        (b'--b\r\ncontent-disposition: form-data; name="a"\r\n\r\n\xff\r\n--b--\r\n', "b"),
        (b'--b\r\ncontent-disposition: form-data; name="a"\r\n\r\nx\r\n--b--\r\n', ""),
        (b'--b\r\ncontent-disposition: form-data; name="a"\r\n\r\nx\r\n' * 65 + b"--b--\r\n", "b"),
    ],
    ids=["empty", "no form", "no end", "no name", "no text", "no boundary", "many parts"],
)
def test_a_malformed_form_is_refused(toys, body, boundary) -> None:
    kind = "multipart/form-data" + (f"; boundary={boundary}" if boundary else "")
    answer = post(toys, "/v1/form", content=body, headers={"content-type": kind})
    assert answer.status_code == 400
    assert "multipart" in answer.json()["error"]["message"]


def test_it_transcribes(toys) -> None:
    answer = post(toys, "/v1/hear", content=b"some audio", headers={"language": "de"})
    report = json.loads(answer.json()["text"])
    assert report["bytes"] == 10
    assert report["language"] == "de"
    assert answer.json()["seconds"] > 0
    refused = post(toys, "/v1/hear", content=b"CORRUPT")
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "file"
    refused = post(toys, "/v1/hear", content=b"x", headers={"language": "klingon"})
    assert refused.json()["error"]["param"] == "language"


# Another rate -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
def test_the_rate_of_the_weights_is_followed(toys, stream) -> None:
    """Sound at 16 kHz of a recipe that says 24: it lasts as long and has its pitch."""
    body = {"model": "low", "input": "one two three", "response_format": "wav", "stream": stream}
    answer = post(toys, "/v1/audio/speech", json=body)
    assert answer.headers["x-sample-rate"] == "24000"
    content = answer.content
    samples = np.frombuffer(content[44:], "<i2")
    assert len(samples) == pytest.approx(3 * 0.1 * 24000, abs=2)
    if not stream:
        with wave.open(BytesIO(content)) as file:
            assert file.getframerate() == 24000
    # The toy computes its tone for 24 kHz; at 16 it is lower by as much.
    right = np.frombuffer(post(toys, "/v1/audio/speech", json={**body, "model": "tone"}).content[44:], "<i2")
    spectrum, wanted = (np.abs(np.fft.rfft(x[:2000] * np.hanning(2000))) for x in (samples, right))
    assert spectrum.argmax() == pytest.approx(wanted.argmax() * 16 / 24, abs=1)


def test_a_rate_that_changes_in_the_middle_is_an_error(toys) -> None:
    body = {"model": "low", "input": "one two WAVER", "response_format": "pcm", "stream": False}
    assert post(toys, "/v1/audio/speech", json=body).status_code == 500
    events = post(toys, "/v1/audio/speech", json={**body, "stream": True, "stream_format": "sse"})
    assert events.status_code == 500 or '"type":"error"' in events.text
