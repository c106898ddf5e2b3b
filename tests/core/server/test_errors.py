"""One envelope, ids, keys, and what the framework itself refuses."""

from __future__ import annotations

import asyncio
import logging

import httpx
import openai
import pytest
from fastapi import WebSocket
from server_harness import error, eventually


@pytest.mark.parametrize("path", ["/nope", "/v1/nope", "/v1/readyz", "/v1/test", "/v1/audio/speech/x", "/v1/toy"])
def test_unknown_paths(http, path):
    answer = http.get(path)
    assert answer.status_code == 404
    assert path in error(answer)["message"]
    assert error(answer)["code"] == "not_found"


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("GET", "/v1/audio/speech", {"POST"}),
        ("PUT", "/v1/audio/transcriptions", {"POST"}),
        ("POST", "/v1/models", {"GET"}),
        ("DELETE", "/health", {"GET"}),
    ],
)
def test_wrong_methods(http, method, path, allow):
    answer = http.request(method, path)
    assert answer.status_code == 405
    assert allow <= set(answer.headers["allow"].replace(" ", "").split(","))
    assert error(answer)["code"] == "method_not_allowed"
    assert error(answer)["type"] == "invalid_request_error"


def test_plugins_routes_use_the_envelope_too(http, caplog):
    assert http.get("/v1/toy/3").json() == {"number": 3, "served": 4}
    wrong = http.get("/v1/toy/many")
    assert (wrong.status_code, error(wrong)["param"]) == (400, "number")
    refused = http.get("/v1/toy/8")
    assert (refused.status_code, error(refused)["message"]) == (400, "not eight")
    with caplog.at_level(logging.ERROR, "omni.server"):
        bug = http.get("/v1/toy/7", headers={"x-request-id": "look-for-me"})
        # Written after the answer.
        (record,) = eventually(lambda: [r for r in caplog.records if "look-for-me" in r.getMessage()])
    assert bug.status_code == 500
    assert "secret" not in bug.text
    assert error(bug)["type"] == "server_error"
    assert record.exc_info
    assert "a secret from a plugin" in record.getMessage()


def test_a_stages_failure_is_logged_with_the_request_id(http, caplog):
    with caplog.at_level(logging.ERROR, "omni.server"):
        answer = http.post("/v1/audio/speech", json={"input": "BOOM"}, headers={"x-request-id": "stage-7"})
    assert answer.headers["x-request-id"] == "stage-7"
    assert "stage-7" in error(answer)["message"]
    assert any("stage-7" in r.getMessage() and "a secret from inside" in r.getMessage() for r in caplog.records)


@pytest.mark.parametrize("path", ["/health", "/nope", "/v1/models"])
def test_every_answer_has_an_id(http, path):
    ids = {http.get(path).headers["x-request-id"] for _ in range(3)}
    assert len(ids) == 3
    assert http.get(path, headers={"x-request-id": "req_1.2:3/4"}).headers["x-request-id"] == "req_1.2:3/4"
    for bad in ("x" * 129, "a b", "é", "<script>", ""):
        given = http.get(path, headers={"x-request-id": bad.encode()}).headers["x-request-id"]
        assert given != bad
        assert len(given) == 32


def test_two_requests_may_share_their_clients_id(http):
    """An id that is not unique must not mix requests up inside."""
    with http.stream(
        "POST", "/v1/audio/speech", json={"input": "FOREVER", "response_format": "pcm"}, headers={"x-request-id": "one"}
    ) as first:
        chunks = first.iter_raw()
        assert next(chunks)
        second = http.post("/v1/audio/speech", json={"input": "hi"}, headers={"x-request-id": "one"})
        assert second.status_code == 200
        assert second.headers["x-request-id"] == "one"
        assert next(chunks)


def test_the_key(start):
    running = start(api_key="s3cret")
    for path in ("/health", "/ready", "/docs", "/openapi.json"):
        assert httpx.get(running.url + path).status_code == 200
    for path in ("/v1/models", "/metrics", "/v1/", "/nope", "/v1/toy/3"):
        answer = httpx.get(running.url + path)
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"
        assert error(answer)["code"] == "invalid_api_key"
    for bad in ("Bearer", "Bearer S3CRET", "Basic s3cret", "s3cret", "Bearer s3crets", b"Bearer \xff"):
        assert httpx.get(running.url + "/v1/models", headers={"authorization": bad}).status_code == 401
    for good in ("Bearer s3cret", "bearer s3cret"):
        assert httpx.get(running.url + "/v1/models", headers={"authorization": good}).status_code == 200
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=running.url + "/v1", api_key="no", max_retries=0).models.list()
    client = openai.OpenAI(base_url=running.url + "/v1", api_key="s3cret", max_retries=0)
    assert client.audio.speech.create(model="tts-1", voice="alloy", input="hi").content
    upload = httpx.post(running.url + "/v1/audio/transcriptions", content=bytes(1 << 20))
    assert upload.status_code == 401


@pytest.mark.parametrize(("key", "answer"), [(None, "websocket.close"), ("s3cret", "reached")])
def test_the_key_of_a_websocket(start, key, answer):
    """Plugins may add some; they are behind the same key."""
    app = start(api_key="s3cret").app

    @app.websocket("/live")
    async def live(websocket: WebSocket) -> None:
        await websocket.accept()
        await websocket.send_text("reached")
        await websocket.close()

    sent: list[dict] = []

    async def send(message: dict) -> None:
        sent.append(message)

    async def receive() -> dict:
        return {"type": "websocket.connect"}

    headers = [] if key is None else [(b"authorization", f"Bearer {key}".encode())]
    scope = {"type": "websocket", "path": "/live", "headers": headers, "query_string": b"", "subprotocols": []}
    asyncio.run(app(scope, receive, send))
    assert any(answer in (message["type"], message.get("text")) for message in sent)
    assert (len(sent) == 1) == (key is None)
