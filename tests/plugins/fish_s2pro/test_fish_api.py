"""Fish's own API: its SDK, its three kinds of body, its fields, its errors."""

from __future__ import annotations

from typing import Any

import httpx
import numpy as np
import ormsgpack
import pytest
from fish_audio_sdk import Prosody as OldProsody
from fish_audio_sdk import ReferenceAudio as OldReference
from fish_audio_sdk import Session
from fish_audio_sdk import TTSRequest as OldRequest
from fish_serving import FRAME, PATIENCE, Running, base64_of, eventually, samples_of, voice
from fishaudio import FishAudio, ReferenceAudio, TTSConfig
from fishaudio.exceptions import APIError, NotFoundError

from fish_s2pro.api.fields import WITHOUT_EFFECT, TTSRequest
from fish_s2pro.params import SpeechParams
from omni.audio import decode
from omni.testing import recording

pytestmark = pytest.mark.xdist_group("fish_http")

TEXT = "Hello world, this is a test."


@pytest.fixture
def sdk(served: Running) -> FishAudio:
    return FishAudio(api_key="any", base_url=served.url)


def tts(served: Running, **fields: Any) -> httpx.Response:
    """With JSON, greedy and short unless told otherwise."""
    body = {"text": TEXT, "temperature": 0, "max_new_tokens": 8, "format": "pcm", **fields}
    return httpx.post(served.url + "/v1/tts", json=body, timeout=PATIENCE)


def wanted(served: Running, **fields: Any) -> np.ndarray:
    return served.speak(**{"input": TEXT, "temperature": 0, "max_new_tokens": 8, **fields})


def assert_same(found: np.ndarray, want: np.ndarray) -> None:
    assert len(found) == len(want)
    assert np.abs(found - want).max() <= 2


# The SDKs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fmt", ["wav", "pcm", "mp3", "opus"])
def test_the_sdk_speaks(served, sdk, fmt) -> None:
    data = sdk.tts.convert(text=TEXT, format=fmt, config=TTSConfig(max_new_tokens=8, temperature=0))
    want = wanted(served, top_p=0.7)
    if fmt == "pcm":
        assert_same(samples_of(data), want)
        return
    found = decode(data, 44100, mono=True)
    # mp3 and opus add a delay and fill up their last frame.
    assert 0 <= len(found) - len(want) <= (0 if fmt == "wav" else 5000)
    if fmt == "wav":
        assert_same(np.rint(found * 32768).astype(np.int32), want)


def test_the_sdk_clones_a_voice(served, sdk) -> None:
    audio = voice(0.4, 180.0)
    config = TTSConfig(max_new_tokens=8, temperature=0, format="pcm", top_p=0.8)
    found = samples_of(sdk.tts.convert(text=TEXT, references=[ReferenceAudio(audio=audio, text="Hm.")], config=config))
    assert_same(found, wanted(served, references=[{"audio": base64_of(audio), "text": "Hm."}]))
    assert np.abs(found - wanted(served)).max() > 100


def test_the_sdk_changes_the_speed(sdk) -> None:
    config = TTSConfig(max_new_tokens=8, temperature=0, format="pcm")
    slow, fast = (samples_of(sdk.tts.convert(text=TEXT, speed=speed, config=config)) for speed in (0.5, 2.0))
    assert len(slow) == pytest.approx(16 * FRAME, rel=0.05)
    assert len(fast) == pytest.approx(4 * FRAME, rel=0.05)


def test_the_sdk_reads_our_errors(served, sdk) -> None:
    with pytest.raises(APIError) as caught:
        sdk.tts.convert(text=TEXT, reference_id="802e3bc2b27e49c2995d23ef70e6ac89")
    assert caught.value.status == 400
    assert "'references'" in caught.value.message
    with pytest.raises(APIError, match="400: 'text' holds no visible text"):
        sdk.tts.convert(text=" ")
    with pytest.raises(APIError, match=r"'references\[0\].audio': the file is not"):
        sdk.tts.convert(text=TEXT, references=[ReferenceAudio(audio=b"no audio", text="Hm.")])
    with pytest.raises(NotFoundError, match="s9-max"):
        sdk.tts.convert(text=TEXT, model="s9-max")


def test_the_old_sdk_speaks(served) -> None:
    """It sends every field, nulls as well, and another model unless told."""
    audio = voice(0.4, 150.0)
    request = OldRequest(
        text=TEXT,
        format="pcm",
        temperature=0,
        top_p=0.8,
        references=[OldReference(audio=audio, text="Ah.")],
        prosody=OldProsody(speed=1.0, volume=0.0),
    )
    want = wanted(served, references=[{"audio": base64_of(audio), "text": "Ah."}])
    heard = b""
    with Session("any", base_url=served.url) as session:
        # It has no field for the length: hear as much as is known and go.
        for piece in session.tts(request):
            heard += piece
            if len(heard) >= 2 * len(want):
                break
    assert_same(samples_of(heard[: 2 * len(want)]), want)


# Bodies -----------------------------------------------------------------------------------------------------------


def test_json_msgpack_and_forms_say_the_same(served) -> None:
    audios = [voice(0.4, 130.0), voice(0.3, 210.0)]
    fields = {"text": TEXT, "temperature": 0, "max_new_tokens": 8, "format": "pcm", "top_k": 5, "seed": 4}
    want = wanted(
        served,
        references=[{"audio": base64_of(audio), "text": f"Voice {i}."} for i, audio in enumerate(audios)],
        seed=4,
        top_k=5,
    )
    as_json = {
        **fields,
        "references": [{"audio": base64_of(audio), "text": f"Voice {i}."} for i, audio in enumerate(audios)],
    }
    as_msgpack = {**fields, "references": [{"audio": audio, "text": f"Voice {i}."} for i, audio in enumerate(audios)]}
    form = {name: str(value) for name, value in fields.items()}
    form |= {f"references[{i}].text": f"Voice {i}." for i in range(2)}
    files = {f"references[{i}].audio": (f"{i}.wav", audio) for i, audio in enumerate(audios)}
    with served.client() as client:
        answers = [
            client.post("/v1/tts", json=as_json),
            client.post(
                "/v1/tts", content=ormsgpack.packb(as_msgpack), headers={"content-type": "application/msgpack"}
            ),
            client.post("/v1/tts", data=form, files=files),
        ]
    for answer in answers:
        assert answer.status_code == 200, answer.text
        assert_same(samples_of(answer.content), want)


@pytest.mark.parametrize(
    ("content", "kind", "word"),
    [
        (b"\xc1", "application/msgpack", "msgpack"),
        (ormsgpack.packb([1]), "application/msgpack", "map"),
        (b"\x81\x01\x02", "application/msgpack", "map"),
        (b"\xdd\xff\xff\xff\xff", "application/msgpack", "msgpack"),
        (b"\x91" * 100_000, "application/msgpack", "msgpack"),
        (b"{", "application/json", "JSON"),
        (b"text=x", "application/x-www-form-urlencoded", "multipart/form-data"),
        (b"--b\r\n\r\n", "multipart/form-data; boundary=b", "multipart"),
        (b'--b\r\ncontent-disposition: form-data; name="text"\r\n\r\nx', "multipart/form-data; boundary=b", "ends"),
        (
            b'--b\r\ncontent-disposition: form-data; name="text"\r\n\r\n\xff\r\n--b--\r\n',
            "multipart/form-data; boundary=b",
            "not valid text",
        ),
    ],
)
def test_a_malformed_body_is_refused(served, content, kind, word) -> None:
    answer = httpx.post(served.url + "/v1/tts", content=content, headers={"content-type": kind}, timeout=PATIENCE)
    assert answer.status_code == 400
    assert word in answer.json()["message"]
    assert answer.json()["error"]["type"] == "invalid_request_error"


def test_msgpack_has_values_that_are_no_fields(served) -> None:
    for field, value in {
        "text": b"bytes",
        "format": ormsgpack.Ext(5, b"pcm"),
        "temperature": float("nan"),
        "prosody": {"speed": b"1"},
        "seed": [1],
        "references": {"audio": b"x"},
        "references[0].audio": [{"audio": 5, "text": "x"}],
        "references[0].text": [{"audio": voice(), "text": b"x"}],
    }.items():
        body = {"text": TEXT, "max_new_tokens": 1, field.partition("[")[0]: value}
        answer = httpx.post(
            served.url + "/v1/tts",
            content=ormsgpack.packb(body),
            headers={"content-type": "application/msgpack"},
            timeout=PATIENCE,
        )
        assert answer.status_code == 400, (field, answer.text)
        assert answer.json()["error"]["param"] == field


def test_forms_are_checked(served) -> None:
    def refused(param: str, data: dict[str, Any], files: dict[str, Any]) -> None:
        answer = httpx.post(served.url + "/v1/tts", data={"text": TEXT, **data}, files=files, timeout=PATIENCE)
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["param"] == param

    refused("file", {}, {"file": b"x"})
    refused("references", {"references[1].text": "x"}, {"references[1].audio": voice()})
    refused("text", {"text": ["a", "b"]}, {"references[0].audio": voice()})
    refused("temperature", {"temperature": "hot"}, {"references[0].audio": voice()})
    refused("references[0].text", {}, {"references[0].audio": voice()})


def test_a_body_over_the_limit_is_refused(start) -> None:
    server = start(["fish-s2-pro-random"], weights=(), max_json_mb=0.25)
    for kind in ("application/msgpack", "application/json", "multipart/form-data; boundary=b"):
        answer = httpx.post(
            server.url + "/v1/tts", content=b"x" * 300_000, headers={"content-type": kind}, timeout=PATIENCE
        )
        assert answer.status_code == 413
        assert "0.25 MiB" in answer.json()["message"]


# Fields -----------------------------------------------------------------------------------------------------------


def test_fields_without_effect_are_named(served) -> None:
    given = {
        "use_memory_cache": "on",
        "latency": "balanced",
        "normalize": False,
        "repetition_penalty": 1.9,
        "mp3_bitrate": 192,
        "opus_bitrate": 24,
        "min_chunk_length": 10,
        "condition_on_previous_chunks": False,
        "early_stop_threshold": 0.5,
    }
    assert set(given) == set(WITHOUT_EFFECT)
    plain = tts(served)
    assert "x-omni-ignored" not in plain.headers
    answer = tts(served, **given, prosody={"volume": 3}, reference_id=None)
    assert answer.headers["x-omni-ignored"].split(", ") == [*WITHOUT_EFFECT, "prosody.volume"]
    assert answer.content == plain.content
    for one in given:
        assert one in TTSRequest.model_fields


def test_every_field_has_fishs_default_and_ours() -> None:
    """What a client leaves out is what Fish's server takes, and what our own endpoint does."""
    fields = TTSRequest.model_fields
    for name, value in {
        "format": "wav",
        "chunk_length": 200,
        "max_new_tokens": 1024,
        "temperature": 0.8,
        "top_p": 0.8,
        "top_k": 30,
    }.items():
        assert fields[name].default == value
        if name in SpeechParams.model_fields:
            assert SpeechParams.model_fields[name].default == value


def test_wrong_fields_are_named(served) -> None:
    for param, fields in {
        "text": {"text": None},
        "fancy": {"fancy": 1},
        "temperature": {"temperature": 1.5},
        "top_p": {"top_p": 0},
        "chunk_length": {"chunk_length": 50},
        "format": {"format": "flac"},
        "latency": {"latency": "slow"},
        "repetition_penalty": {"repetition_penalty": 3},
        "max_new_tokens": {"max_new_tokens": "10"},
        "seed": {"seed": -(2**63)},
        "references": {"references": "voice.wav"},
        "references[0]": {"references": [1]},
        "references[0].audio": {"references": [{"audio": "not base64!", "text": "x"}]},
        "references[1].text": {
            "references": [{"audio": base64_of(voice()), "text": "x"}, {"audio": base64_of(voice())}]
        },
        "prosody.speed": {"prosody": {"speed": 5}},
        "sample_rate": {"sample_rate": 100},
        "reference_id": {"reference_id": "x"},
    }.items():
        answer = tts(served, **fields)
        assert answer.status_code == 400, (fields, answer.text[:100])
        body = answer.json()
        assert body["error"]["param"] == param
        assert repr(param) in body["message"]
        assert body["error"]["message"] in body["message"]
        assert body["status"] == 400


def test_an_empty_voice_id_and_a_negative_seed_mean_what_they_do_at_fish(served) -> None:
    given = tts(served, text="Hello.", seed=7, max_new_tokens=6).content
    assert tts(served, text="Hello.", seed=-7, reference_id="", max_new_tokens=6).content == given


def test_text_over_the_limit_is_refused_by_fishs_name(served) -> None:
    answer = tts(served, text="a" * 100_001)
    assert answer.json()["error"]["param"] == "text"
    assert answer.json()["message"].startswith("'text' has 100001 characters")


def test_a_model_may_be_any_of_fishs(served) -> None:
    def ask(model: str) -> httpx.Response:
        body = {"text": TEXT, "temperature": 0, "max_new_tokens": 1, "format": "pcm"}
        return httpx.post(served.url + "/v1/tts", json=body, headers={"model": model}, timeout=PATIENCE)

    for name in ("s2-pro", "fish-s2-pro", "fishaudio/s2-pro"):
        assert "x-omni-ignored" not in ask(name).headers
    for name in ("s1", "speech-1.5", "speech-1.6", "s1-mini", "agent-x0"):
        assert ask(name).headers["x-omni-ignored"] == "model"
    answer = ask("gpt-5")
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "model_not_found"


def test_rates(served) -> None:
    for fmt, rate in (("pcm", 44100), ("wav", 44100), ("mp3", 44100), ("opus", 48000)):
        assert int(tts(served, format=fmt).headers["x-sample-rate"]) == rate
    assert len(samples_of(tts(served, sample_rate=24000).content)) == pytest.approx(8 * FRAME * 24 / 44.1, abs=1)


# Streaming --------------------------------------------------------------------------------------------------------


def test_streams_unless_the_header_needs_the_length(served) -> None:
    for fmt, streaming, whole in (
        ("wav", None, True),
        ("pcm", None, False),
        ("mp3", None, False),
        ("wav", True, False),
        ("mp3", False, True),
    ):
        answer = tts(served, format=fmt, streaming=streaming)
        assert ("content-length" in answer.headers) == whole, (fmt, streaming)
        assert len(answer.content) > 1000
    streamed = tts(served, format="wav", streaming=True).content
    assert streamed[:4] == b"RIFF"
    assert streamed[4:8] == b"\xff\xff\xff\xff"
    assert_same(samples_of(streamed[44:]), wanted(served))


def test_a_client_that_leaves_ends_its_request(served) -> None:
    before = served.metric("omni_pipeline_requests_total", outcome="cancelled")
    body = {"text": TEXT, "format": "pcm", "max_new_tokens": 3000, "seed": 1}
    with served.client() as client, client.stream("POST", "/v1/tts", json=body) as answer:
        assert next(answer.iter_raw())
    assert eventually(lambda: served.metric("omni_pipeline_requests_total", outcome="cancelled") == before + 1)
    assert served.metric("omni_active") == 0


# Around -----------------------------------------------------------------------------------------------------------


def test_health_and_description(served) -> None:
    for method in ("GET", "POST"):
        answer = httpx.request(method, served.url + "/v1/health", timeout=PATIENCE)
        assert answer.json() == {"status": "ok"}
    paths = httpx.get(served.url + "/openapi.json", timeout=PATIENCE).json()["paths"]
    content = paths["/v1/tts"]["post"]["requestBody"]["content"]
    assert set(content) == {"application/json", "application/msgpack", "multipart/form-data"}
    assert set(content["application/json"]["schema"]["properties"]) == set(TTSRequest.model_fields)
    assert "/v1/asr" not in paths


def test_metrics_count_under_the_api_s_path(served) -> None:
    before = served.metric("omni_http_requests_total", endpoint="/v1/tts", status="200", model="fish-s2-pro")
    tts(served)
    after = served.metric("omni_http_requests_total", endpoint="/v1/tts", status="200", model="fish-s2-pro")
    assert after == before + 1


def test_the_key_is_asked_for(start) -> None:
    server = start(["fish-s2-pro-random"], weights=(), api_key="secret")
    config = TTSConfig(max_new_tokens=1, format="pcm")
    with pytest.raises(APIError) as caught:
        FishAudio(api_key="wrong", base_url=server.url).tts.convert(text=TEXT, config=config)
    assert caught.value.status == 401
    sound = FishAudio(api_key="secret", base_url=server.url).tts.convert(text=TEXT, config=config)
    assert len(samples_of(sound)) == FRAME


def test_without_a_recipe_of_this_plugin_there_is_no_fish_api(start) -> None:
    server = start(["hibari-tts"], weights=())
    answer = httpx.post(server.url + "/v1/tts", json={"text": TEXT}, timeout=PATIENCE)
    assert answer.status_code == 404
    assert "there is no endpoint" in answer.json()["error"]["message"]


def test_the_sdk_transcribes_with_the_recipe_that_hears(start) -> None:
    server = start(["fish-s2-pro-random", "whisper-tiny-en"], weights=())
    spoken = recording("garden").audio.tobytes()
    sdk = FishAudio(api_key="any", base_url=server.url)
    heard = sdk.asr.transcribe(audio=spoken, language="en")
    assert "tomatoes" in heard.text
    assert 1000 < heard.duration < 5000
    assert heard.segments
    assert heard.segments[-1].end * 1000 <= heard.duration + 100
    assert sdk.asr.transcribe(audio=spoken, include_timestamps=False).segments == []
    form = httpx.post(
        server.url + "/v1/asr",
        data={"language": "en", "ignore_timestamps": "false"},
        files={"audio": ("a.flac", spoken)},
        timeout=PATIENCE,
    )
    assert form.json()["segments"]
    with pytest.raises(APIError, match="audio"):
        sdk.asr.transcribe(audio=b"no audio")
    with pytest.raises(APIError, match="klingon"):
        sdk.asr.transcribe(audio=spoken, language="klingon")
