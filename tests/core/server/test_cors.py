"""Pages of other origins: what a browser asks for them, and what it reads in the answers."""

from __future__ import annotations

import httpx
import pytest
from pydantic import ValidationError

from omni.server.settings import ServerSettings

PAGE = "https://page.example:8443"
SPEECH = "/v1/audio/speech"
BODY = {"model": "tone", "input": "hello", "response_format": "pcm"}
QUESTION = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"}


def test_a_page_of_an_allowed_origin_asks_without_the_key_and_then_sends_it(start):
    running = start(cors_origins=(PAGE,), api_key="secret")
    with httpx.Client(base_url=running.url, headers={"Origin": PAGE}) as http:
        asked = http.options(SPEECH, headers=QUESTION)
        assert (asked.status_code, asked.content) == (204, b"")
        assert asked.headers["access-control-allow-origin"] == PAGE
        assert "POST" in asked.headers["access-control-allow-methods"]
        assert asked.headers["access-control-allow-headers"] == "authorization,content-type"
        spoken = http.post(SPEECH, json=BODY, headers={"Authorization": "Bearer secret"})
        refused = http.post(SPEECH, json=BODY)
    assert (spoken.status_code, refused.status_code) == (200, 401)
    for answer in (spoken, refused):  # a page must be able to read errors too
        assert answer.headers["access-control-allow-origin"] == PAGE
        assert answer.headers["access-control-expose-headers"] == "*"
        assert "origin" in answer.headers["vary"]
    assert "access-control-allow-credentials" not in spoken.headers


@pytest.mark.parametrize("origin", ["https://page.example", "http://page.example:8443", "null", "é"])
def test_a_page_of_another_origin_gets_no_permission(start, origin):
    running = start(cors_origins=(PAGE,))
    headers = {"Origin": origin.encode()}
    for answer in (
        httpx.options(running.url + SPEECH, headers={**headers, **QUESTION}),
        httpx.post(running.url + SPEECH, json=BODY, headers=headers),
    ):
        assert "access-control-allow-origin" not in answer.headers
        assert answer.headers["vary"] == "origin"


def test_any_origin(start):
    running = start(cors_origins=("*",))
    answer = httpx.get(running.url + "/v1/models", headers={"Origin": "null"})
    assert answer.headers["access-control-allow-origin"] == "*"


def test_none_is_allowed_by_default(http):
    headers = {"Origin": PAGE}
    assert http.options(SPEECH, headers={**headers, **QUESTION}).status_code == 405
    assert "access-control-allow-origin" not in http.get("/v1/models", headers=headers).headers


@pytest.mark.parametrize("origin", ["page.example", PAGE + "/", "https://a b", "https://é", ""])
def test_what_is_no_origin_is_refused_at_launch(origin):
    with pytest.raises(ValidationError, match="cors_origins"):
        ServerSettings(cors_origins=(origin,))
