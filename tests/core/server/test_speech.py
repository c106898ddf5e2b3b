"""POST /v1/audio/speech: sounds, streams, fields."""

from __future__ import annotations

import base64
import io

import av
import httpx
import numpy as np
import openai
import pytest
from server_harness import error, events

TEXT = "one two three four"
SECONDS = 0.4
FORMATS = {
    "mp3": "audio/mpeg",
    "opus": "audio/ogg",
    "aac": "audio/aac",
    "flac": "audio/flac",
    "wav": "audio/wav",
    "pcm": "audio/pcm",
}


def heard(data: bytes, fmt: str) -> tuple[np.ndarray, int]:
    """Mono float samples and their rate, by an independent decoder."""
    if fmt == "pcm":
        return np.frombuffer(data, "<i2") / 32768, 24000
    with av.open(io.BytesIO(data)) as container:
        stream = container.streams.audio[0]
        resampler = av.AudioResampler(format="flt", layout="mono")
        frames = [f for frame in container.decode(stream) for f in resampler.resample(frame)]
        return np.concatenate([f.to_ndarray()[0] for f in frames]), stream.rate


def pitches(samples: np.ndarray, rate: int, words: int = 4) -> list[int]:
    """The loudest frequency in the middle of each word, in Hz."""
    found = []
    for number in range(words):
        middle = int((number + 0.5) * 0.1 * rate)
        part = samples[middle - rate // 40 : middle + rate // 40] * np.hanning(rate // 40 * 2)
        found.append(int(np.argmax(np.abs(np.fft.rfft(part, rate)))))
    return found


@pytest.fixture(scope="module")
def reference(served) -> list[int]:
    raw = httpx.post(served.url + "/v1/audio/speech", json={"input": TEXT, "response_format": "pcm"}).content
    assert len(raw) == 2 * 24000 * SECONDS
    return pitches(*heard(raw, "pcm"))


@pytest.mark.parametrize("fmt", FORMATS)
def test_every_format_streamed_whole_and_as_events(ai, http, fmt, reference):
    with ai.audio.speech.with_streaming_response.create(
        model="tts-1", voice="alloy", input=TEXT, response_format=fmt
    ) as response:
        assert response.headers["content-type"] == FORMATS[fmt]
        assert response.headers["transfer-encoding"] == "chunked"
        streamed = b"".join(response.iter_bytes())
    whole = http.post("/v1/audio/speech", json={"input": TEXT, "response_format": fmt, "stream": False})
    assert int(whole.headers["content-length"]) == len(whole.content)
    assert whole.headers["content-type"] == FORMATS[fmt]
    assert whole.headers["x-omni-finish-reason"] == "stop"
    sse = http.post("/v1/audio/speech", json={"input": TEXT, "response_format": fmt, "stream_format": "sse"})
    assert sse.headers["content-type"].startswith("text/event-stream")
    *deltas, done = events(sse.text)
    assert {delta["type"] for delta in deltas} == {"speech.audio.delta"}
    assert b"".join(base64.b64decode(delta["audio"]) for delta in deltas) == streamed
    assert done["type"] == "speech.audio.done"
    assert done["usage"] == {"input_tokens": 8, "output_tokens": 20, "total_tokens": 28}
    for data in (streamed, whole.content):
        samples, rate = heard(data, fmt)
        assert rate == (48000 if fmt == "opus" else 24000)
        # mp3 and aac have a delay of up to 1105 samples that a stream cannot announce.
        assert abs(len(samples) / rate - SECONDS) < 0.12
        if fmt not in ("mp3", "aac"):
            assert len(samples) == pytest.approx(rate * SECONDS, abs=1)
            assert np.allclose(pitches(samples, rate), reference, atol=3)


def test_mp3_is_the_default_and_wav_knows_its_length_only_when_whole(http):
    assert http.post("/v1/audio/speech", json={"input": "hi"}).headers["content-type"] == "audio/mpeg"
    body = {"input": TEXT, "response_format": "wav"}
    streamed = http.post("/v1/audio/speech", json=body).content
    whole = http.post("/v1/audio/speech", json=body | {"stream": False}).content
    assert streamed[4:8] == streamed[40:44] == b"\xff\xff\xff\xff"
    assert int.from_bytes(whole[4:8], "little") == len(whole) - 8
    assert streamed[44:] == whole[44:]


def test_first_bytes_leave_before_the_last_are_made(http):
    with http.stream("POST", "/v1/audio/speech", json={"input": "FOREVER", "response_format": "pcm"}) as response:
        body = response.iter_raw()
        assert len(next(body)) > 0
        assert len(next(body)) > 0


@pytest.mark.parametrize(
    ("body", "rate", "samples"),
    [
        ({"response_format": "pcm", "sample_rate": 8000}, 8000, 3200),
        ({"response_format": "pcm", "sample_rate": "native"}, 24000, 9600),
        ({"response_format": "wav", "sample_rate": 16000}, 16000, 6400),
        ({"response_format": "pcm", "model": "stereo"}, 24000, 9600),
        ({"response_format": "pcm", "model": "stereo", "sample_rate": "native"}, 44100, 17640),
    ],
)
def test_sample_rate(http, body, rate, samples):
    answer = http.post("/v1/audio/speech", json={"input": TEXT} | body)
    assert answer.headers["x-sample-rate"] == str(rate)
    assert answer.headers["x-channels"] == "1"
    length = len(answer.content) - (44 if body["response_format"] == "wav" else 0)
    assert length == 2 * samples
    whole = http.post("/v1/audio/speech", json={"input": TEXT, "stream": False} | body)
    assert whole.content[44:] == answer.content[44:]


def test_stereo_stays_stereo_in_files_and_is_mixed_in_pcm(http):
    answer = http.post("/v1/audio/speech", json={"input": "one", "model": "stereo", "response_format": "wav"})
    assert answer.headers["x-channels"] == "2"
    left, right = (np.frombuffer(answer.content[44:], "<i2").reshape(-1, 2) / 32768).T
    assert np.allclose(right, -0.5 * left, atol=1e-4)
    assert left.max() > 0.25
    body = {"input": "one", "model": "stereo", "response_format": "pcm", "sample_rate": "native"}
    mono = np.frombuffer(http.post("/v1/audio/speech", json=body).content, "<i2") / 32768
    assert np.allclose(mono, 0.25 * left, atol=1e-4)


def test_speed_is_the_models_own_in_its_range_and_stretched_outside(http):
    def length(speed: float) -> int:
        body = {"input": TEXT, "response_format": "pcm", "speed": speed}
        return len(http.post("/v1/audio/speech", json=body).content) // 2

    assert length(1) == 9600
    assert length(2) == 4800
    assert length(4) == 2400
    assert length(0.25) == 38400


@pytest.mark.parametrize("voice", ["low", "Low voice", "LOW VOICE", "alloy", "Cedar", {"id": "low"}, None])
def test_voices_that_are_the_default(http, voice):
    default = http.post("/v1/audio/speech", json={"input": "hi", "response_format": "pcm"}).content
    other = http.post("/v1/audio/speech", json={"input": "hi", "response_format": "pcm", "voice": "high"}).content
    assert http.post("/v1/audio/speech", json={"input": "hi", "response_format": "pcm", "voice": voice}).content == (
        default
    )
    assert other != default


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("instructions", "whisper"),
        ("seed", 7),
        ("language", "german"),
        ("references", [{"audio": base64.b64encode(b"sound").decode(), "text": "hello"}]),
        ("references", [{"audio": "data:audio/wav;base64," + base64.b64encode(b"other").decode()}]),
    ],
)
def test_fields_reach_a_model_that_takes_them(http, field, value):
    body = {"input": "hi", "model": "stereo", "response_format": "pcm"}
    plain = http.post("/v1/audio/speech", json=body)
    with_it = http.post("/v1/audio/speech", json=body | {field: value})
    assert plain.status_code == with_it.status_code == 200
    assert plain.content != with_it.content
    refused = http.post("/v1/audio/speech", json={"input": "hi", field: value})
    if field != "language":
        assert refused.status_code == 400
        assert error(refused)["param"] == field
        assert error(refused)["code"] == "unsupported_parameter"


def test_language_code_and_name_are_the_same(http):
    body = {"input": "hi", "model": "stereo", "response_format": "pcm"}
    sounds = {
        http.post("/v1/audio/speech", json=body | {"language": name}).content for name in ("de", "German", "de-AT")
    }
    assert len(sounds) == 1


def test_parameters_of_the_recipe(http):
    body = {"input": "hi", "response_format": "pcm"}
    plain = http.post("/v1/audio/speech", json=body).content
    assert http.post("/v1/audio/speech", json=body | {"pitch": 1.5}).content != plain
    assert http.post("/v1/audio/speech", json=body | {"pitch": None, "overtones": None}).content == plain


@pytest.mark.parametrize(
    ("body", "param", "needle"),
    [
        ({}, "input", "missing"),
        ({"input": None}, "input", "missing"),
        ({"input": ""}, "input", "no visible text"),
        ({"input": " \n\t "}, "input", "no visible text"),
        ({"input": "\u200b\ufeff\u00ad"}, "input", "no visible text"),
        ({"input": "!? …"}, "input", "spoken"),
        ({"input": 5}, "input", "a string"),
        ({"input": "x" * 2001}, "input", "2000"),
        ({"input": "REFUSE"}, "input", "this text is refused"),
        ({"input": "hi", "model": 3}, "model", "a string"),
        ({"input": "hi", "voice": "bob"}, "voice", "low, high"),
        ({"input": "hi", "voice": {"name": "low"}}, "voice", "'id'"),
        ({"input": "hi", "voice": 1}, "voice", "a string or an object"),
        ({"input": "hi", "response_format": "ogg"}, "response_format", "mp3, opus, aac, flac, wav, pcm"),
        ({"input": "hi", "response_format": True}, "response_format", "mp3"),
        ({"input": "hi", "speed": 0.2}, "speed", "at least 0.25"),
        ({"input": "hi", "speed": 4.01}, "speed", "at most 4"),
        ({"input": "hi", "speed": "1.0"}, "speed", "a number"),
        ({"input": "hi", "speed": True}, "speed", "a number"),
        ({"input": "hi", "stream": "true"}, "stream", "true or false"),
        ({"input": "hi", "stream": 1}, "stream", "true or false"),
        ({"input": "hi", "stream_format": "raw"}, "stream_format", "audio, sse"),
        ({"input": "hi", "stream_format": "sse", "stream": False}, "stream", "excludes"),
        ({"input": "hi", "sample_rate": 7999}, "sample_rate", "at least 8000"),
        ({"input": "hi", "sample_rate": 48001}, "sample_rate", "at most 48000"),
        ({"input": "hi", "sample_rate": 24000.5}, "sample_rate", "a whole number or 'native'"),
        ({"input": "hi", "sample_rate": "fast"}, "sample_rate", "a whole number or 'native'"),
        ({"input": "hi", "sample_rate": 22050, "response_format": "opus"}, "sample_rate", "24000"),
        ({"input": "hi", "language": "klingon"}, "language", "not a language"),
        ({"input": "hi", "language": "fr", "model": "stereo"}, "language", "en, de"),
        ({"input": "hi", "seed": -1, "model": "stereo"}, "seed", "at least 0"),
        ({"input": "hi", "seed": 2**63, "model": "stereo"}, "seed", "at most"),
        ({"input": "hi", "pitch": 2.5}, "pitch", "less than or equal to 2"),
        ({"input": "hi", "pitch": "1.5"}, "pitch", "valid number"),
        ({"input": "hi", "pitch": True}, "pitch", "valid number"),
        ({"input": "hi", "overtones": 1.5}, "overtones", "integer"),
        ({"input": "hi", "shout": "yes"}, "shout", "boolean"),
        ({"input": "hi", "volume": 1}, "volume", "unknown"),
        ({"input": "hi", "pitch ": 1}, "pitch ", "unknown"),
        ({"input": "hi", "pitch": 1, "model": "stereo"}, "pitch", "unknown"),
        ({"input": "hi", "references": "x", "model": "stereo"}, "references", "a list"),
        ({"input": "hi", "references": ["x"], "model": "stereo"}, "references[0]", "object"),
        ({"input": "hi", "references": [{}], "model": "stereo"}, "references[0].audio", "base64"),
        ({"input": "hi", "references": [{"audio": "a*b="}], "model": "stereo"}, "references[0].audio", "base64"),
        ({"input": "hi", "references": [{"audio": "YQ=="}] * 9, "model": "stereo"}, "references", "at most 8"),
        (
            {"input": "hi", "references": [{"audio": "A" * 1_400_008}], "model": "stereo"},
            "references[0].audio",
            "1 MiB",
        ),
        (
            {"input": "hi", "references": [{"audio": "YQ==", "text": 4}], "model": "stereo"},
            "references[0].text",
            "string",
        ),
    ],
)
def test_refusals_name_the_field_and_the_limit(http, body, param, needle):
    answer = http.post("/v1/audio/speech", json=body)
    assert answer.status_code == 400
    assert error(answer)["param"] == param
    assert error(answer)["type"] == "invalid_request_error"
    assert needle in error(answer)["message"]
    assert len(answer.content) < 1000


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"hello",
        b"[]",
        b'"text"',
        b'{"input": "hi", "speed": NaN}',
        b'{"input": "hi", "speed": Infinity}',
        b'{"input": "hi", "speed": 1e999}',
        b'{"input": "\xff"}',
        b'{"input": "\\ud800 alone"}',
        b'{"input": ' + b"[" * 100_000,
        b'{"input": "hi"',
        b'{"input": "hi", "seed": ' + b"9" * 100_000 + b"}",
    ],
)
def test_what_is_no_json_object_is_refused(http, body):
    answer = http.post("/v1/audio/speech", content=body)
    assert answer.status_code == 400
    assert error(answer)["type"] == "invalid_request_error"
    assert http.get("/ready").status_code == 200


def test_wrong_and_unknown_models(ai, http):
    with pytest.raises(openai.NotFoundError) as missing:
        ai.audio.speech.create(model="gpt-9", voice="alloy", input="hi")
    assert missing.value.code == "model_not_found"
    assert missing.value.param == "model"
    assert "tone, stereo, hear" in missing.value.message
    for model in ("hear", "whisper-1"):
        with pytest.raises(openai.BadRequestError) as wrong:
            ai.audio.speech.create(model=model, voice="alloy", input="hi")
        assert wrong.value.param == "model"
        assert "transcription" in wrong.value.message


def test_an_own_voice_and_a_reference_exclude_each_other(start):
    import server_toys

    task = server_toys.TONE.task.model_copy(update={"cloning": True})
    both = server_toys.TONE.model_copy(update={"task": task})
    url = start(recipes=[both]).url + "/v1/audio/speech"
    references = [{"audio": "YWJj"}]
    refused = httpx.post(url, json={"input": "hi", "voice": "high", "references": references})
    assert refused.status_code == 400
    assert error(refused)["param"] == "voice"
    body = {"input": "hi", "response_format": "pcm", "references": references}
    assert httpx.post(url, json=body).content == httpx.post(url, json=body | {"voice": "alloy"}).content


@pytest.mark.parametrize(
    ("text", "status", "said"),
    [("BOOM", 500, "request id"), ("NOTHING", 500, "request id"), ("NAN", 500, "request id")],
)
@pytest.mark.parametrize("more", [{}, {"stream": False}, {"stream_format": "sse"}])
def test_failures_before_the_first_sound_have_their_status(http, text, status, said, more):
    answer = http.post("/v1/audio/speech", json={"input": text, "response_format": "pcm"} | more)
    assert answer.status_code == status
    assert said in error(answer)["message"]
    assert answer.headers["x-request-id"] in error(answer)["message"]
    assert "secret" not in answer.text


def test_a_failure_after_the_first_sound_breaks_the_body(http):
    # The first word's sound is written while the second is waited for.
    text = "one " * 60 + "BOOM"
    with http.stream("POST", "/v1/audio/speech", json={"input": text, "response_format": "pcm"}) as response:
        assert response.status_code == 200
        with pytest.raises(httpx.RemoteProtocolError):
            for _ in response.iter_raw():
                pass


def test_a_failure_after_the_first_sound_is_an_event(http):
    text = "one " * 60 + "BOOM"
    body = {"input": text, "response_format": "pcm", "stream_format": "sse"}
    answer = http.post("/v1/audio/speech", json=body)
    *deltas, last = events(answer.text)
    assert deltas
    assert {delta["type"] for delta in deltas} == {"speech.audio.delta"}
    assert last["type"] == "error"
    assert set(last["error"]) == {"message", "type", "param", "code"}
    assert "secret" not in answer.text
