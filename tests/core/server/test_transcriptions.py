"""POST /v1/audio/transcriptions: formats, fields, events."""

from __future__ import annotations

import base64
import io
import json
import zlib

import httpx
import openai
import pytest
from server_harness import error

AUDIO = b"RIFF some sound"
NAMES = ("bytes", "crc", "language", "prompt", "temperature", "seed", "timestamps", "params")


def report(text: str) -> dict:
    return json.loads(text)


def post(http: httpx.Client, data: dict | None = None, audio: bytes = AUDIO) -> httpx.Response:
    return http.post("/v1/audio/transcriptions", data=data or {}, files={"file": ("a.wav", audio)})


def test_json_is_the_default_and_says_what_was_heard(ai):
    answer = ai.audio.transcriptions.create(model="hear", file=("a.wav", AUDIO, "audio/wav"))
    assert report(answer.text) == {
        "bytes": len(AUDIO),
        "crc": zlib.crc32(AUDIO),
        "language": None,
        "prompt": None,
        "temperature": None,
        "seed": None,
        "timestamps": [],
        "params": {},
    }
    assert answer.usage.type == "duration"
    assert answer.usage.seconds == 4.5


def test_every_field_of_the_client_arrives(ai):
    answer = ai.audio.transcriptions.create(
        model="gpt-4o-transcribe",
        file=io.BytesIO(AUDIO),
        language="english",
        prompt="Names: Ada",
        temperature=0.5,
        chunking_strategy="auto",
        extra_body={"seed": 3, "beam": 4, "hotwords": ["x", "y"], "vad_filter": False},
    )
    heard = report(answer.text)
    assert heard["language"] == "en"
    assert heard["prompt"] == "Names: Ada"
    assert heard["temperature"] == 0.5
    assert heard["seed"] == 3
    assert heard["params"] == {"beam": 4, "hotwords": ["x", "y"], "vad_filter": False}


@pytest.mark.parametrize("language", ["de", "DE", "de-DE", "de_AT", "German", "german"])
def test_language_as_code_or_name(http, language):
    assert report(post(http, {"language": language}).json()["text"])["language"] == "de"
    assert report(post(http, {"languages[]": [language]}).json()["text"])["language"] == "de"


def test_text_srt_and_vtt(ai, http):
    text = ai.audio.transcriptions.create(model="hear", file=("a", AUDIO), response_format="text")
    assert report(text)["bytes"] == len(AUDIO)
    answer = post(http, {"response_format": "text"})
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"

    answer = post(http, {"response_format": "srt"})
    assert answer.headers["content-type"] == "application/x-subrip; charset=utf-8"
    cues = answer.text.split("\n\n")
    assert len(cues) == len(NAMES)
    assert cues[0].splitlines() == ["1", "00:00:00,000 --> 00:00:00,500", f'{{"bytes": {len(AUDIO)}']
    assert cues[1].startswith('2\n00:00:00,500 --> 00:00:01,000\n, "crc": ')
    assert ai.audio.transcriptions.create(model="hear", file=("a", AUDIO), response_format="srt") == answer.text

    answer = post(http, {"response_format": "vtt"})
    assert answer.headers["content-type"] == "text/vtt; charset=utf-8"
    head, first, *_ = answer.text.split("\n\n")
    assert head == "WEBVTT"
    assert first.splitlines() == ["00:00:00.000 --> 00:00:00.500", f'{{"bytes": {len(AUDIO)}']
    assert report(text)["timestamps"] == []
    timed = report(post(http, {"response_format": "verbose_json"}).json()["text"])["timestamps"]
    assert timed == ["segment"]


def test_verbose_json_has_openais_shape(ai):
    answer = ai.audio.transcriptions.create(
        model="whisper-1",
        file=("a.wav", AUDIO),
        response_format="verbose_json",
        timestamp_granularities=["word", "segment"],
    )
    assert answer.language == "english"
    assert answer.duration == 4.5
    assert answer.usage.seconds == 4.5
    assert "".join(segment.text for segment in answer.segments) == answer.text
    second = answer.segments[1].model_dump()
    assert second == {
        "id": 1,
        "seek": 50,
        "start": 0.5,
        "end": 1.0,
        "text": second["text"],
        "tokens": [],
        "temperature": 0.0,
        "avg_logprob": 0.0,
        "compression_ratio": 0.0,
        "no_speech_prob": 0.0,
    }
    assert (answer.words[0].word, answer.words[0].start, answer.words[0].end) == ('{"bytes":', 0.0, 0.25)
    assert set(report(answer.text)["timestamps"]) == {"word", "segment"}


@pytest.mark.parametrize("name", ["timestamp_granularities", "timestamp_granularities[]"])
@pytest.mark.parametrize(
    ("asked", "listed"), [(["word"], {"words"}), (["segment"], {"segments"}), (["segment", "word"], None), ([], None)]
)
def test_granularities_with_and_without_brackets(http, name, asked, listed):
    body = post(http, {"response_format": "verbose_json", name: asked}).json()
    listed = listed or ({"words", "segments"} if asked else {"segments"})
    assert {"words", "segments"} & set(body) == listed
    assert body["task"] == "transcribe"


def test_a_model_without_times_gives_verbose_json_but_no_cues(http):
    body = post(http, {"model": "plain", "response_format": "verbose_json"}).json()
    assert "segments" not in body
    assert body["duration"] == 4.5
    for kind in ("srt", "vtt"):
        refused = post(http, {"model": "plain", "response_format": kind})
        assert refused.status_code == 400
        assert error(refused)["param"] == "response_format"


def test_no_speech_is_empty_text_in_every_format(http):
    audio = b"SILENCE"
    assert post(http, audio=audio).json()["text"] == ""
    assert post(http, {"response_format": "text"}, audio).text == ""
    assert post(http, {"response_format": "srt"}, audio).text == ""
    assert post(http, {"response_format": "vtt"}, audio).text == "WEBVTT\n"
    body = post(http, {"response_format": "verbose_json"}, audio).json()
    assert (body["text"], body["segments"], body["language"]) == ("", [], "unknown")
    events = post(http, {"stream": "true"}, audio).text
    assert [json.loads(line[6:])["type"] for line in events.split("\n\n")[:-1]] == ["transcript.text.done"]


def test_events(ai):
    stream = ai.audio.transcriptions.create(model="gpt-4o-mini-transcribe", file=("a.wav", AUDIO), stream=True)
    events = list(stream)
    *deltas, done = events
    assert len(deltas) == len(NAMES)
    assert {delta.type for delta in deltas} == {"transcript.text.delta"}
    assert done.type == "transcript.text.done"
    assert done.text == "".join(delta.delta for delta in deltas)
    assert report(done.text)["bytes"] == len(AUDIO)
    assert done.usage.model_dump()["seconds"] == 4.5


def test_json_body_of_open_webui(http):
    body = {
        "model": "whisper-1",
        "input_audio": {"data": base64.b64encode(AUDIO).decode(), "format": "wav"},
        "language": "en",
        "temperature": 0,
    }
    heard = report(http.post("/v1/audio/transcriptions", json=body).json()["text"])
    assert heard["crc"] == zlib.crc32(AUDIO)
    assert heard["language"] == "en"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input_audio"),
        ({"input_audio": "x"}, "input_audio"),
        ({"input_audio": {"data": 4}}, "input_audio"),
        ({"input_audio": {"data": "YQ==", "url": "x"}}, "input_audio"),
        ({"input_audio": {"data": "a b"}}, "input_audio.data"),
        ({"input_audio": {"data": ""}}, "input_audio.data"),
        ({"input_audio": {"data": "YQ=="}, "temperature": "0"}, "temperature"),
        ({"input_audio": {"data": "YQ=="}, "languages": [1]}, "languages"),
        ({"input_audio": {"data": "YQ=="}, "file": "x"}, "file"),
        ({"input_audio": {"data": "YQ=="}, "beam": "3"}, "beam"),
    ],
)
def test_refusals_of_json(http, body, param):
    answer = http.post("/v1/audio/transcriptions", json=body)
    assert answer.status_code == 400
    assert error(answer)["param"] == param


@pytest.mark.parametrize(
    ("data", "param", "needle"),
    [
        ({"response_format": "diarized_json"}, "response_format", "json, text, srt, vtt, verbose_json"),
        ({"response_format": ""}, "response_format", "one of"),
        ({"language": "tlhingan"}, "language", "en, de, zh"),
        ({"language": "fr"}, "language", "en, de, zh"),
        ({"languages[]": ["en", "de"]}, "languages", "one language"),
        ({"temperature": "1.5"}, "temperature", "at most 1"),
        ({"temperature": "-0.1"}, "temperature", "at least 0"),
        ({"temperature": "nan"}, "temperature", "finite"),
        ({"temperature": "hot"}, "temperature", "a number"),
        ({"temperature": "0_1"}, "temperature", "a number"),
        ({"temperature": ""}, "temperature", "a number"),
        ({"stream": "yes"}, "stream", "true or false"),
        ({"stream": "true", "response_format": "srt"}, "stream", "json or text"),
        ({"timestamp_granularities[]": ["word"]}, "timestamp_granularities", "verbose_json"),
        (
            {"timestamp_granularities[]": ["phoneme"], "response_format": "verbose_json"},
            "timestamp_granularities",
            "segment, word",
        ),
        (
            {"timestamp_granularities[]": ["word"], "response_format": "verbose_json", "model": "plain"},
            "timestamp_granularities",
            "no word",
        ),
        ({"include[]": ["logprobs"]}, "include", "not supported"),
        ({"chunking_strategy": "server_vad"}, "chunking_strategy", "auto"),
        ({"chunking_strategy[type]": "server_vad"}, "chunking_strategy[type]", "unknown"),
        ({"prompt": "x", "model": "plain"}, "prompt", "no 'prompt'"),
        ({"temperature": "0.2", "model": "plain"}, "temperature", "but 0"),
        ({"seed": "1", "model": "plain"}, "seed", "no 'seed'"),
        ({"vad_filter": "true", "model": "plain"}, "vad_filter", "no 'vad_filter'"),
        ({"keywords[]": ["x"]}, "keywords", "no 'keywords'"),
        ({"known_speaker_names[]": ["x"]}, "known_speaker_names[]", "unknown"),
        ({"beam": "11"}, "beam", "less than or equal to 10"),
        ({"beam": "many"}, "beam", "valid integer"),
        ({"seed": "1.0"}, "seed", "whole number"),
        ({"model": "tone"}, "model", "does speech"),
        ({"language": ["en", "en"]}, "language", "twice"),
        ({"x" * 300: "1"}, "x" * 100, "unknown"),
    ],
)
def test_refusals_name_the_field(http, data, param, needle):
    answer = post(http, data)
    assert answer.status_code == 400
    assert error(answer)["param"] == param
    assert needle in error(answer)["message"]


def test_what_clients_always_send_is_taken_by_the_plainest_model(http):
    data = {
        "model": "plain",
        "temperature": "0",
        "prompt": "",
        "language": "",
        "vad_filter": "false",
        "stream": "false",
        "chunking_strategy": "auto",
    }
    assert post(http, data).status_code == 200


def test_unknown_model_and_damaged_audio(ai):
    with pytest.raises(openai.NotFoundError) as missing:
        ai.audio.transcriptions.create(model="whisper-9", file=("a.wav", AUDIO))
    assert missing.value.code == "model_not_found"
    assert "hear, plain" in missing.value.message
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as damaged:
            ai.audio.transcriptions.create(model="hear", file=("a.wav", b"CORRUPT"), stream=stream)
        assert damaged.value.param == "file"
