"""The tables that check and document: fields, languages, transcripts, names."""

from __future__ import annotations

import json

import pytest
import server_toys
from hypothesis import given
from hypothesis import strategies as st

from omni.errors import BadRequest, ConfigError
from omni.messages import Segment, TranscriptChunk, Usage, Word
from omni.server import speech_fields, transcription_fields
from omni.server.fields import Field, Parameters, unknown_field
from omni.server.languages import code_of, name_of
from omni.server.objects import decode_object
from omni.server.openai_names import MODELS, VOICES, model_aliases, spellings, voices_of
from omni.server.settings import ServerSettings
from omni.server.transcript_formats import Transcript, render, srt, vtt

TABLES = [*speech_fields.FIELDS.values(), *transcription_fields.FIELDS.values()]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)
PYTHON = {"string": str, "number": float, "integer": int, "boolean": bool, "array": list, "object": dict}


def outcome(call) -> object:
    """What ``call`` gives, or how it refuses; anything else it raises is a failure."""
    try:
        return call()
    except BadRequest as error:
        return error


@given(field=st.sampled_from(TABLES), value=JSON)
def test_a_field_gives_what_its_schema_says_or_refuses_by_name(field: Field, value):
    checked = outcome(lambda: field.check(value))
    if isinstance(checked, BadRequest):
        assert checked.param == field.name
        assert field.name in checked.message
        assert len(checked.message) < 300
    else:
        assert checked == value
        assert any(type(checked) is PYTHON[kind] for kind in field.types) or checked in field.choices


@given(field=st.sampled_from(TABLES), text=st.text(max_size=30))
def test_a_forms_text_never_ends_in_another_error(field: Field, text: str):
    checked = outcome(lambda: field.check(field.parse(text)))
    assert not isinstance(checked, BadRequest) or checked.param == field.name


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_that_json_does_not_have_are_refused_by_name(number: str):
    refusal = outcome(lambda: decode_object(f'{{"input": "hi", "speed": {number}}}'.encode()))
    assert isinstance(refusal, BadRequest)
    assert (refusal.param, refusal.message) == ("speed", "'speed' must be a finite number")


def test_a_limit_and_what_is_just_over_it_look_different():
    refusal = outcome(lambda: speech_fields.FIELDS["seed"].check(2**63))
    assert isinstance(refusal, BadRequest)
    assert refusal.message == f"'seed' must be at most {2**63 - 1}, not {2**63}"


HUGE = "1" + "0" * 400


@pytest.mark.parametrize("number", [HUGE, "-" + HUGE])
@pytest.mark.parametrize("name", ["speed", "seed", "sample_rate"])
def test_whole_numbers_that_no_float_holds_are_out_of_range(name, number):
    refusal = outcome(lambda: speech_fields.FIELDS[name].check(decode_object(f'{{"x":{number}}}'.encode())["x"]))
    assert isinstance(refusal, BadRequest)
    assert refusal.param == name
    assert f"at {'least' if number[0] == '-' else 'most'} " in refusal.message
    assert len(refusal.message) < 200


def test_without_limits_a_number_still_has_to_fit_a_float():
    refusal = outcome(lambda: Field("x", ("number",), "").check(int(HUGE)))
    assert isinstance(refusal, BadRequest)
    assert refusal.message == "'x' must be a number that a float can hold"


@pytest.mark.parametrize("text", ["nan", "inf", "-Infinity", "1e999", HUGE])
def test_parameters_are_finite(text):
    parameters = Parameters("alias", server_toys.AliasParams, ())
    for values, from_form in (({"biasOf": text}, True), ({"biasOf": int(HUGE)}, False)):
        refusal = outcome(lambda v=values, f=from_form: parameters.validate(v, text=f))
        assert isinstance(refusal, BadRequest)
        assert (refusal.param, refusal.message) == ("biasOf", "'biasOf' must be a finite number")


def test_a_name_of_any_length_is_cut_in_an_error():
    refusal = outcome(lambda: Parameters("alias", server_toys.AliasParams, ()).validate({"x" * 100_000: 1}))
    assert isinstance(refusal, BadRequest)
    assert len(refusal.message) + len(refusal.param or "") < 500


def test_parameters_that_are_read_and_written_under_different_names():
    with pytest.raises(ConfigError, match="'top_k' is read and written under different names"):
        Parameters("otherwise", server_toys.ReadOtherwiseParams, ())


def test_known_fields_are_listed_once():
    assert unknown_field("x", ("a", "b", "a")).message.endswith("known are: a, b")


@given(body=st.binary(max_size=60) | JSON.map(lambda value: json.dumps(value).encode()))
def test_bodies_never_end_in_another_error(body: bytes):
    assert isinstance(outcome(lambda: decode_object(body)), (dict, BadRequest))


def test_parameters_from_json_are_strict_and_from_a_form_are_read():
    parameters = Parameters("hear", server_toys.HearParams, ())
    assert parameters.validate({"beam": 3, "vad_filter": False}) == {"beam": 3, "vad_filter": False}
    assert parameters.validate({"beam": "3", "vad_filter": "false"}, text=True) == {"beam": 3, "vad_filter": False}
    assert parameters.validate({}) == {}
    for values in ({"beam": "3"}, {"beam": 3.0}, {"beam": True}, {"vad_filter": 1}, {"hotwords": "x"}, {"beam": 0}):
        with pytest.raises(BadRequest) as caught:
            parameters.validate(values)
        assert caught.value.param == next(iter(values))
    with pytest.raises(BadRequest, match=r"hotwords\.1"):
        parameters.validate({"hotwords": ["x", 2]})
    with pytest.raises(ConfigError, match="'beam'"):
        Parameters("hear", server_toys.HearParams, ["beam"])


@pytest.mark.parametrize(
    ("text", "code"),
    [
        *(("en", "en"), ("EN", "en"), ("en-US", "en"), ("en_us", "en"), (" English ", "en"), ("english", "en")),
        *(
            ("zh-Hant-TW", "zh"),
            ("Mandarin", "zh"),
            ("Norwegian", "no"),
            ("Cantonese", "yue"),
            ("Haitian Creole", "ht"),
            ("Moldavian", "ro"),
            ("iw-IL", "he"),
            ("jw", "jv"),
            ("zh-yue", "yue"),
            ("zh-yue-HK", "yue"),
            ("Filipino", "fil"),
            ("fil-PH", "fil"),
            ("Tagalog", "tl"),
        ),
    ],
)
def test_languages(text, code):
    assert code_of(text, None) == code
    assert code_of(text, ["xx", code]) == code
    with pytest.raises(BadRequest, match="it knows: xx"):
        code_of(text, ["xx"])


def test_languages_of_a_models_own():
    assert code_of("zh-HK", ["zh", "zh-HK"]) == "zh-HK"
    assert code_of("tok", ["tok"]) == "tok"
    assert code_of("jw", ["jw"]) == "jw"
    assert code_of("zh-yue", ["zh"]) == "zh", "the nearest there is"
    for text in ("tl", "tl-PH", "Tagalog", "fil", "Filipino"):
        assert (code_of(text, ["fil"]), code_of(text, ["tl"])) == ("fil", "tl"), "two names of one language"
    for text in ("", "e", "eng", "tlh", "\n", "x" * 64):
        with pytest.raises(BadRequest) as caught:
            code_of(text, None)
        assert caught.value.param == "language"
    assert name_of("de") == "german"
    assert name_of("tok") == "tok"
    assert name_of(None) == "unknown"


def segment(start: float, end: float, text: str) -> Segment:
    return Segment(start=start, end=end, text=text)


def test_srt_and_vtt():
    segments = [segment(0, 1.0006, " Hello & <b>\n\n"), segment(3661.2345, 36000, "a --> b")]
    assert srt(segments) == (
        "1\n00:00:00,000 --> 00:00:01,001\nHello & <b>\n\n2\n01:01:01,234 --> 10:00:00,000\na -> b\n"
    )
    assert vtt(segments) == (
        "WEBVTT\n\n00:00:00.000 --> 00:00:01.001\nHello &amp; &lt;b&gt;\n\n01:01:01.234 --> 10:00:00.000\na -&gt; b\n"
    )
    assert srt([]) == ""
    assert vtt([]) == "WEBVTT\n"
    assert srt([segment(59.9996, 60, "x")]).startswith("1\n00:01:00,000 --> 00:01:00,000")


def test_a_transcript_of_chunks():
    transcript = Transcript()
    transcript.add(TranscriptChunk(text=" a", language="de", usage=Usage(3, 4)))
    heard = Segment(start=0, end=2.5, text=" a b", words=[Word(" a", 0, 1), Word(" b", 1, 2.5)], avg_logprob=-0.5)
    transcript.add(TranscriptChunk(text=" b", segments=[heard], usage=Usage(1, 1)))
    assert transcript.text == " a b"
    assert transcript.duration == 2.5
    assert transcript.usage() == {"type": "tokens", "input_tokens": 4, "output_tokens": 5, "total_tokens": 9}
    body = decode_object(render(transcript, "verbose_json", ("segment", "word")))
    assert body["language"] == "german"
    assert body["segments"][0]["avg_logprob"] == -0.5
    assert [word["word"] for word in body["words"]] == ["a", "b"]
    transcript.add(TranscriptChunk(duration=9.0))
    assert transcript.duration == 9.0
    assert "finish_reason" not in body, "the model does not tell"
    transcript.add(TranscriptChunk(finish_reason="length"))
    for kind in ("json", "verbose_json"):
        assert decode_object(render(transcript, kind, ()))["finish_reason"] == "length"


def test_openais_names():
    assert len(VOICES) == 13
    assert set(MODELS.values()) == {"speech", "transcription"}
    assert model_aliases(ServerSettings()) == MODELS
    assert model_aliases(ServerSettings(aliases=False)) == {}
    names = voices_of(server_toys.TONE.task, ServerSettings())
    assert (names["low"], names["Low voice"], names["high"], names["alloy"]) == ("low", "low", "high", "low")
    assert "alloy" not in voices_of(server_toys.TONE.task, ServerSettings(aliases=False))
    own = server_toys.TONE.task.model_copy(update={"voices": (*server_toys.TONE.task.voices, *map(_voice, ["nova"]))})
    assert voices_of(own, ServerSettings())["nova"] == "nova"


def _voice(name: str):
    from omni import Voice

    return Voice(name)


def test_names_are_found_however_they_are_written_unless_that_tells_them_apart() -> None:
    assert spellings(["Ryan", "Ann", "ann"]) == {"ryan": "Ryan"}
