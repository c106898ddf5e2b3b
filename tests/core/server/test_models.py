"""What the server says about itself: models, voices, health, metrics, documentation."""

from __future__ import annotations

import httpx
import openai
import pytest
from server_harness import error

from omni.server.openai_names import MODELS, VOICES


def test_models_lists_recipes_and_then_aliases(ai):
    models = ai.models.list().data
    assert [model.id for model in models] == ["tone", "stereo", "hear", "plain", *MODELS]
    assert {model.object for model in models} == {"model"}
    assert all(isinstance(model.created, int) and model.owned_by == "omni" for model in models)
    aliases = {model.id: model.alias_of for model in models if model.alias_of}
    assert aliases["tts-1"] == "tone"
    assert aliases["whisper-1"] == "hear"


def test_a_speech_models_capabilities(ai):
    model = ai.models.retrieve("tone").model_dump()
    assert model["task"] == "speech"
    assert model["formats"] == ["mp3", "opus", "aac", "flac", "wav", "pcm"]
    assert (model["sample_rate"], model["channels"]) == (24000, 1)
    assert model["limits"]["max_characters"] == 2000
    assert model["limits"]["max_requests"] == 64
    assert model["parameters"]["properties"]["pitch"]["maximum"] == 2
    assert (model["cloning"], model["instructions"], model["seed"]) == (False, False, False)
    assert model["voices"][0]["name"] == "Low voice"
    assert {voice["name"] for voice in model["voices"]} == {"Low voice", "high", *VOICES}
    stereo = ai.models.retrieve("stereo").model_dump()
    assert (stereo["cloning"], stereo["instructions"], stereo["seed"]) == (True, True, True)
    assert stereo["languages"] == ["en", "de"]


def test_every_listed_voice_name_can_be_spoken_with(http):
    """Clients written for speaches send the name, others the id."""
    for voice in http.get("/v1/models/tone").json()["voices"]:
        for name in (voice["id"], voice["name"]):
            answer = http.post("/v1/audio/speech", json={"input": "hi", "voice": name, "response_format": "pcm"})
            assert answer.status_code == 200


def test_a_transcription_models_capabilities(ai):
    model = ai.models.retrieve("hear").model_dump()
    assert model["task"] == "transcription"
    assert model["timestamp_granularities"] == ["segment", "word"]
    assert model["formats"] == ["json", "text", "srt", "vtt", "verbose_json"]
    assert model["limits"]["max_upload_mb"] == 8
    assert ai.models.retrieve("plain").model_dump()["formats"] == ["json", "text", "verbose_json"]


def test_unknown_model(ai):
    with pytest.raises(openai.NotFoundError) as missing:
        ai.models.retrieve("gpt-9")
    assert missing.value.code == "model_not_found"


def test_voices_and_audio_models(http):
    voices = http.get("/v1/audio/voices").json()["voices"]
    assert voices[0] == {"id": "low", "name": "Low voice", "language": None}
    assert {"id": "alloy", "name": "alloy", "alias_of": "low"} in voices
    stereo = http.get("/v1/audio/voices", params={"model": "stereo"}).json()["voices"]
    assert [voice["id"] for voice in stereo] == list(VOICES)
    assert http.get("/v1/audio/voices", params={"model": "hear"}).status_code == 400
    ids = [model["id"] for model in http.get("/v1/audio/models").json()["models"]]
    assert ids[:2] == ["tone", "stereo"]
    assert "tts-1" in ids
    assert "hear" not in ids
    assert "whisper-1" not in ids


def test_aliases_can_be_switched_off(start):
    running = start(aliases=False)
    with httpx.Client(base_url=running.url) as http:
        ids = [model["id"] for model in http.get("/v1/models").json()["data"]]
        assert ids == ["tone", "stereo", "hear", "plain"]
        assert [v["id"] for v in http.get("/v1/audio/voices").json()["voices"]] == ["low", "high"]
        missing = http.post("/v1/audio/speech", json={"input": "hi", "model": "tts-1"})
        assert (missing.status_code, error(missing)["code"]) == (404, "model_not_found")
        unknown = http.post("/v1/audio/speech", json={"input": "hi", "voice": "alloy"})
        assert (unknown.status_code, error(unknown)["param"]) == (400, "voice")


def test_a_server_without_speech_says_so(start):
    import server_toys

    running = start(recipes=[server_toys.HEAR])
    with httpx.Client(base_url=running.url) as http:
        assert http.get("/v1/audio/voices").json() == {"voices": []}
        assert http.get("/v1/audio/models").json() == {"models": []}
        answer = http.post("/v1/audio/speech", json={"input": "hi"})
        assert (answer.status_code, error(answer)["code"]) == (404, "model_not_found")
        assert "tts-1" not in http.get("/v1/models").text


def test_health_ready_and_index(http):
    health = http.get("/health")
    assert health.json() == {"status": "alive", "state": "ready"}
    assert http.get("/ready").json()["models"] == ["tone", "stereo", "hear", "plain"]
    for path in ("/", "/v1/"):
        assert http.get(path).json()["name"] == "omni"


def test_metrics(served, http):
    before = served.metric("omni_audio_seconds_total", model="stereo")
    http.post("/v1/audio/speech", json={"input": "one two", "model": "stereo", "speed": 2})
    http.post("/v1/audio/speech", json={"input": "one", "model": "stereo", "seed": -1})
    assert served.metric("omni_audio_seconds_total", model="stereo") - before == pytest.approx(0.1)
    speech = {"endpoint": "/v1/audio/speech", "model": "stereo"}
    assert served.metric("omni_http_requests_total", status="200", **speech) >= 1
    assert served.metric("omni_http_requests_total", status="400", **speech) >= 1
    assert served.metric("omni_http_request_seconds_count", **speech) >= 2
    assert served.metric("omni_first_audio_seconds_count", model="stereo") >= 1
    assert served.metric("omni_http_in_flight") == 1
    assert served.metric("omni_ready") == 1
    assert served.metric("omni_pipeline_requests_total", model="stereo", outcome="completed") >= 1
    assert served.metric("omni_stage_items_total", model="stereo", stage="sound") >= 2
    for gauge in ("streams", "queued", "running"):
        assert f'omni_stage_{gauge}{{model="tone",stage="sound"}} 0.0' in served.metrics()
    http.get("/v1/models/" + "x" * 50)
    http.get("/some/path")
    text = served.metrics()
    assert "xxx" not in text
    assert "/some/path" not in text


def test_documentation_lists_fields_and_parameters(http):
    document = http.get("/openapi.json").json()
    speech = document["paths"]["/v1/audio/speech"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert speech["properties"]["speed"] == {
        "type": "number",
        "minimum": 0.25,
        "maximum": 4.0,
        "default": 1.0,
        "description": speech["properties"]["speed"]["description"],
    }
    assert speech["properties"]["response_format"]["enum"] == ["mp3", "opus", "aac", "flac", "wav", "pcm"]
    assert speech["properties"]["pitch"]["description"] == "(parameter of tone)"
    content = document["paths"]["/v1/audio/transcriptions"]["post"]["requestBody"]["content"]
    assert content["multipart/form-data"]["schema"]["properties"]["file"] == {"type": "string", "format": "binary"}
    assert "input_audio" in content["application/json"]["schema"]["properties"]
    assert "/v1/toy/{number}" in document["paths"]
    assert "/v1/models/{name}" in document["paths"]
    assert "swagger" in http.get("/docs").text
