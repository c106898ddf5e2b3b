"""The tiny checkpoints over HTTP: golden texts, every response format, languages, streams, times, many at once."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from asr_serving import PATIENCE, Running, deltas, wav_of

from omni import Segment
from qwen3_asr.aligner import prompt_ids
from qwen3_asr.features import log_mel
from qwen3_asr.prompts import PromptBuilder
from qwen3_asr.spans import QuietSplitter
from qwen3_asr.times import segments, timed
from qwen3_asr.transcripts import parse
from qwen3_asr.units import split_units

pytestmark = pytest.mark.xdist_group("qwen3_asr_http")

TOKENS = 28
CASES = {
    "w1.auto": {},
    "w2.auto": {},
    "w3.auto": {},
    "w2.english": {"language": "en"},
    "w2.context": {"prompt": "Qwen, hotword"},
    "w2.context_chinese": {"prompt": "Qwen, hotword", "language": "zh"},
}


def golden_text(meta: dict[str, Any], case: str) -> str:
    names = {"en": "English", "zh": "Chinese"}
    return parse(meta["info"][case]["text"], names.get(CASES[case].get("language", "")))[1]


def refused(served: Running, samples: np.ndarray, param: str, *words: str, **fields: Any) -> None:
    answer = served.post(samples, **fields)
    assert answer.status_code == 400, answer.text[:200]
    error = answer.json()["error"]
    assert error["param"] == param
    for word in words:
        assert word in error["message"]


# Text -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_text_is_the_golden_text(served, meta, golden, wave, case) -> None:
    found = served.transcribe(wave(case[:2]), max_new_tokens=TOKENS, **CASES[case])
    assert found["text"] == golden_text(meta, case)
    info = meta["info"][case]
    tokens = info["new_tokens"] - info["ended_by_eos"]
    assert found["usage"] == {
        "type": "tokens",
        "input_tokens": info["prompt_len"],
        "output_tokens": tokens,
        "total_tokens": info["prompt_len"] + tokens,
    }


@pytest.mark.parametrize("case", CASES)
def test_streamed_text_is_the_golden_text(served, meta, wave, case) -> None:
    events = served.events(wave(case[:2]), max_new_tokens=TOKENS, **CASES[case])
    assert "".join(deltas(events)) == events[-1]["text"] == golden_text(meta, case)
    assert events[-1]["type"] == "transcript.text.done"
    assert events[-1]["usage"]["input_tokens"] == meta["info"][case]["prompt_len"]
    # Without a tag, which random weights do not write, nothing is known to be text before the end.
    assert len(deltas(events)) > 3 if "language" in CASES[case] else len(deltas(events)) == 1


def test_the_formats_without_times(served, meta, wave) -> None:
    sound, fields = wave("w2"), {"max_new_tokens": TOKENS, "language": "en"}
    text = golden_text(meta, "w2.english")
    assert served.transcribe(sound, response_format="json", **fields)["text"] == text
    assert served.transcribe(sound, response_format="text", **fields) == text
    verbose = served.transcribe(sound, response_format="verbose_json", **fields)
    assert verbose == {
        "task": "transcribe",
        "language": "english",
        "duration": len(sound) / 16_000,
        "text": text,
        "usage": {"type": "duration", "seconds": len(sound) / 16_000},
        "finish_reason": "stop",
    }, "no segments: nobody knows where the words are"


@pytest.mark.parametrize("kind", ["srt", "vtt"])
def test_subtitles_need_times(served, wave, kind) -> None:
    refused(
        served,
        wave("w1"),
        "response_format",
        "no timestamps",
        kind,
        "'qwen3-asr-0.6b-timestamps'",
        response_format=kind,
    )


@pytest.mark.parametrize("granularity", ["word", "segment"])
def test_times_need_the_aligner(served, wave, granularity) -> None:
    fields = {"response_format": "verbose_json", "timestamp_granularities[]": granularity}
    words = (f"no {granularity} timestamps", "'qwen3-asr-0.6b-timestamps'")
    refused(served, wave("w1"), "timestamp_granularities", *words, **fields)


def test_logprobs_are_refused(served, wave) -> None:
    refused(served, wave("w1"), "include", "logprobs", **{"include[]": "logprobs"})


def test_languages_have_codes_and_names(served, meta, wave) -> None:
    text = golden_text(meta, "w2.english")
    for language in ("en", "EN", "English", "en-US"):
        fields = {"language": language, "max_new_tokens": TOKENS, "response_format": "verbose_json"}
        found = served.transcribe(wave("w2"), **fields)
        assert (found["text"], found["language"]) == (text, "english")
    for language, name in (("yue", "cantonese"), ("zh-yue", "cantonese"), ("Filipino", "filipino"), ("tl", "filipino")):
        fields = {"language": language, "max_new_tokens": 2, "response_format": "verbose_json"}
        assert served.transcribe(wave("w1"), **fields)["language"] == name
    refused(served, wave("w1"), "language", "'sw'", "yue", "mk", language="sw")
    found = served.transcribe(wave("w2"), max_new_tokens=TOKENS, response_format="verbose_json")
    assert found["language"] == "unknown", "random weights name none"


def test_auto_is_detection(served, wave) -> None:
    sound, fields = wave("w2"), {"max_new_tokens": TOKENS, "response_format": "verbose_json"}
    assert served.transcribe(sound, language="auto", **fields) == served.transcribe(sound, **fields)


def test_a_cut_text_says_so(served, tokenizer, wave) -> None:
    """In every shape of an answer, which OpenAI's clients read as before."""
    fields = {"max_new_tokens": 3, "language": "en"}
    for kind in ("json", "text", "verbose_json"):
        answer = served.post(wave("w2"), response_format=kind, **fields)
        assert answer.headers["x-omni-finish-reason"] == "length"
        if kind != "text":
            assert answer.json()["finish_reason"] == "length"
    assert served.events(wave("w2"), **fields)[-1]["finish_reason"] == "length"
    client = openai.OpenAI(base_url=served.url + "/v1", api_key="none", timeout=PATIENCE)
    file = ("clip.wav", wav_of(wave("w2")).tobytes())
    for kind in ("json", "verbose_json"):
        found = client.audio.transcriptions.create(
            model="qwen3-asr-0.6b", file=file, response_format=kind, extra_body={"max_new_tokens": 3}
        )
        assert found.model_extra["finish_reason"] == "length"
    *_, done = client.audio.transcriptions.create(
        model="qwen3-asr-0.6b", file=file, stream=True, extra_body={"max_new_tokens": 3}
    )
    assert (done.type, done.model_extra["finish_reason"]) == ("transcript.text.done", "length")


def test_a_seed_repeats_what_a_temperature_draws(served, wave) -> None:
    def draw(**fields: Any) -> str:
        return served.transcribe(wave("w2"), max_new_tokens=TOKENS, language="en", **fields)["text"]

    seeded = [draw(temperature=1, seed=seed) for seed in (1, 2, 1)]
    assert seeded[0] == seeded[2] != seeded[1]
    assert draw(temperature=0, seed=1) == draw(temperature=0, seed=2) == draw()


def test_limits_of_fields(served, wave) -> None:
    refused(served, wave("w1"), "max_new_tokens", max_new_tokens=0)
    refused(served, wave("w1"), "max_new_tokens", max_new_tokens=32_769)
    refused(served, wave("w1"), "temperature", temperature=1.5)
    refused(served, b"this is no audio " * 50, "file")
    many = {"prompt": "1 2 " * 15_000, "max_new_tokens": 32_768}
    refused(served, wave("w1"), "max_new_tokens", "65536 together", **many)


def test_a_loud_click_is_no_error(served) -> None:
    assert isinstance(served.transcribe(np.full(8, 0.9), max_new_tokens=2)["text"], str)


def test_sixteen_at_once_equal_each_alone(served, wave) -> None:
    jobs: list[tuple[np.ndarray, dict[str, Any]]] = []
    for i in range(16):
        fields = {"language": ("en", "de", "zh")[i % 3], "max_new_tokens": 10 + i}
        jobs.append((wave("w3")[i * 4000 : 90_000 + i * 5000], {**fields, "temperature": i % 2, "seed": i}))

    def run(job: tuple[np.ndarray, dict[str, Any]]) -> Any:
        return served.transcribe(job[0], **job[1])

    alone = [run(job) for job in jobs]
    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(run, jobs)) == alone
    assert len({answer["text"] for answer in alone}) > 12


def test_a_glossary_is_computed_once(served, wave) -> None:
    """For sounds that differ, whose own positions are never shared."""
    fields = {"prompt": "Qwen, hotword " * 12, "max_new_tokens": 4}
    engine = served.pipeline.schedulers["ar"].engine_stats

    def shared(sound: np.ndarray) -> int:
        before = engine().prefix_hit_tokens_total
        served.transcribe(sound, **fields)
        return engine().prefix_hit_tokens_total - before

    first, *others = (shared(wave("w3")[8000 * i :]) for i in range(3))
    assert first == 0
    assert len(set(others)) == 1
    assert others[0] > 100


# Times ----------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def expected(encoder, model, tokenizer, aligner, wave) -> Any:
    """``expected(samples, code, language)``: segments and text, part by part and without a pipeline."""
    heard, listening, words = aligner

    def make(generate: Any, samples: np.ndarray, code: str, language: str) -> tuple[str, list[Segment]]:
        splitter = QuietSplitter(16_000, 4.0, 2.0)
        parts = [*splitter.push(samples), *splitter.finish()]
        found: list[Segment] = []
        texts = []
        for part in parts:
            mel = log_mel(np.pad(part.samples, (0, max(0, 8000 - len(part.samples)))))
            (embeds,) = encoder.encode([mel])
            ids = PromptBuilder(tokenizer).build(len(embeds), language=code)
            tokens, _ = generate(model, ids, embeds, TOKENS)
            text = parse(tokenizer.decode(tokens), language)[1]
            texts.append(text)
            units = split_units(text, code)
            if units:
                (audio,) = listening.encode([mel])
                prompt = prompt_ids(words, heard.config.timestamp_id, [unit.word for unit in units], len(audio))
                (logits,) = heard.timestamp_logits([prompt], [audio])
                units = timed(units, (logits.argmax(-1) * 80).tolist())
            found += segments(text, units, part.start, part.end - part.start)
        return " ".join(text for text in texts if text), found

    return make


def test_words_and_segments_are_those_of_the_parts(timing, wave, expected, generate) -> None:
    sound = wave("w3")
    text, found = expected(generate, sound, "en", "English")
    answer = timing.transcribe(
        sound,
        language="en",
        max_new_tokens=TOKENS,
        response_format="verbose_json",
        **{"timestamp_granularities[]": ["word", "segment"]},
    )
    assert answer["text"] == text
    assert [(s["start"], s["end"], s["text"]) for s in answer["segments"]] == [(s.start, s.end, s.text) for s in found]
    words = [word for segment in found for word in segment.words]
    assert answer["words"] == [{"word": word.word, "start": word.start, "end": word.end} for word in words]
    assert len(words) > 10
    assert words[-1].start > 4
    for word, following in pairwise(words):
        assert 0 <= word.start <= word.end <= len(sound) / 16_000
        assert word.start <= following.start


@pytest.mark.parametrize("language", ["hi", "th", "ar", "tr"])
def test_times_in_a_language_that_the_aligner_does_not_know_are_refused(timing, wave, language) -> None:
    words = {"response_format": "verbose_json", "timestamp_granularities[]": "word"}
    said = ("'timestamp_granularities'", f"'{language}'", "zh, en, yue, fr, de, it, ja, ko, pt, ru, es")
    refused(timing, wave("w1"), "language", *said, language=language, **words)
    refused(timing, wave("w1"), "language", "srt needs", language=language, response_format="srt")
    answer = timing.transcribe(wave("w1"), language=language, response_format="verbose_json", max_new_tokens=3)
    assert "segments" not in answer, "nobody asked for them"


def test_formats_with_times(timing, wave) -> None:
    sound, fields = wave("w3"), {"language": "en", "max_new_tokens": TOKENS}
    verbose = timing.transcribe(sound, response_format="verbose_json", **fields)
    assert "words" not in verbose
    assert len(verbose["segments"]) >= 3
    assert "".join("".join(s["text"].split()) for s in verbose["segments"]) == "".join(verbose["text"].split())
    srt = timing.transcribe(sound, response_format="srt", **fields)
    vtt = timing.transcribe(sound, response_format="vtt", **fields)
    stamp = r"\d\d:\d\d:\d\d{}\d\d\d --> \d\d:\d\d:\d\d{}\d\d\d"
    assert len(re.findall(stamp.format(",", ","), srt)) == len(verbose["segments"])
    assert len(re.findall(stamp.format(r"\.", r"\."), vtt)) == len(verbose["segments"])
    assert timing.transcribe(sound, **fields)["text"] == verbose["text"], "the same text when nobody asks for times"
    assert timing.transcribe(sound, response_format="text", **fields) == verbose["text"]


def test_long_audio_streams_part_by_part(timing, wave) -> None:
    sound, fields = np.tile(wave("w3"), 3), {"language": "en", "max_new_tokens": TOKENS}
    events = timing.events(sound, **fields)
    whole = timing.transcribe(sound, **fields)
    assert "".join(deltas(events)) == events[-1]["text"] == whole["text"]
    assert len(deltas(events)) > 20
    assert events[-1]["usage"] == whole["usage"]
    assert all("\ufffd" not in piece or "\ufffd" in whole["text"] for piece in deltas(events))


def test_the_client_library(timing, wave) -> None:
    client = openai.OpenAI(base_url=timing.url + "/v1", api_key="none", timeout=PATIENCE)
    found = client.audio.transcriptions.create(
        model="qwen3-asr-0.6b-timestamps",
        file=("clip.wav", wav_of(wave("w2")).tobytes()),
        language="en",
        response_format="verbose_json",
        timestamp_granularities=["word"],
        extra_body={"max_new_tokens": TOKENS},
    )
    assert found.words
    assert found.text
    assert found.duration == pytest.approx(len(wave("w2")) / 16_000)


def test_models_say_what_they_can(served, timing) -> None:
    for running, times in ((served, []), (timing, ["segment", "word"])):
        every = httpx.get(running.url + "/v1/models", timeout=PATIENCE).json()["data"]
        (listed,) = [model for model in every if model["id"] == running.pipeline.recipe.name]
        assert listed["timestamp_granularities"] == times
        assert (listed["timestamp_languages"] is not None) == bool(times)
        assert ("srt" in listed["formats"]) == bool(times)
        assert "yue" in listed["languages"]
