"""The stages one by one: what they ask of an engine, what they make of its steps, how spans become a transcript."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
import torch
from asr_serving import wav_of

from omni import BadRequest, Joined, StageFailed, TranscriptChunk, TranscriptionRequest, Usage
from omni.engines.base import Prompt, SamplingParams, StepOutput
from qwen3_asr.alignment import SOUNDS, TEXTS
from qwen3_asr.encoder import positions_of
from qwen3_asr.messages import Aligned, Encoded, Ending, Span, Spoken, Unit
from qwen3_asr.model import AUDIO
from qwen3_asr.stages import EMBEDS, SPANS
from qwen3_asr.times import segments
from qwen3_asr.transcript import SpanText


@pytest.fixture
def span(golden) -> Any:
    """``span(**fields)`` of the second clip."""
    base = {"position": 0, "last": True, "start": 0.0, "seconds": 3.37, "mel": golden["w2.mel"]}
    return lambda **fields: Span(**{**base, **fields})


# Encoder --------------------------------------------------------------------------------------------------------------


def test_the_cache_knows_a_sound_whatever_is_asked_about_it(stages, span) -> None:
    encoder = stages["encoder"]
    key = encoder.key(span(language="de", prompt="x", position=3))
    assert np.array_equal(key.mel, span().mel)
    assert set(key.__struct_fields__) == {"mel"}


def test_batches_are_bounded_by_seconds(stages, span) -> None:
    """One span of the longest kind, or many clips; what nobody wants times of takes no place in the aligner's."""
    encoder, aligner = stages["encoder"], stages["aligner"]
    assert encoder.options.max_cost == aligner.options.max_cost == 200
    assert encoder.cost(span(seconds=180.0)) == 180.0

    def written(timed: bool) -> Joined:
        ending = Ending(False, 0.0, 180.0, "x", timed=timed)
        return Joined(parts={SOUNDS: span(), TEXTS: SpanText(position=0, language="en", ending=ending)})

    assert aligner.cost(written(True)) == 180.0
    assert 0 < aligner.cost(written(False)) < 1


def test_a_span_that_is_written_holds_no_sound(stages, span) -> None:
    full = span(language="de", prompt="x", words=True)
    (info,) = stages["spans"].add(None, full, "audio")
    assert not hasattr(info, "mel")
    assert all(getattr(info, name) == getattr(full, name) for name in info.__struct_fields__)


def test_spans_of_a_batch_are_encoded_each_for_itself(stages, span, golden) -> None:
    mels = [golden[f"{name}.mel"] for name in ("w1", "w3", "w2")]
    batch = stages["encoder"].encode([span(mel=mel) for mel in mels])
    for mel, found in zip(mels, batch, strict=True):
        (alone,) = stages["encoder"].encode([span(mel=mel)])
        assert found.embeds.shape == (positions_of(mel.shape[1]), 48)
        assert (found.embeds - alone.embeds).abs().max() < 1e-6


# Recogniser -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def recogniser(stages) -> Any:
    stage = stages["ar"]
    stage.max_tokens = 65536
    return stage


def opened(recogniser: Any, span: Span, positions: int = 44) -> Any:
    return recogniser.open(Joined(parts={SPANS: span, EMBEDS: Encoded(embeds=torch.zeros(positions, 48))}))


def test_the_prompt_and_how_it_is_sampled(recogniser, span, golden) -> None:
    state = opened(recogniser, span(language="zh", prompt="Qwen, hotword", temperature=0.5, seed=7))
    prompt, params = recogniser.prompt(state)
    assert prompt.tokens.tolist() == golden["w2.context_chinese.prompt_ids"].tolist()
    assert prompt.embeds[AUDIO] is state.embeds
    pad = recogniser._tokenizer.audio_pad
    assert pad not in prompt.tokens[: prompt.plain]
    assert prompt.tokens[prompt.plain] == pad
    assert params == SamplingParams(max_new_tokens=64 + int(25 * 3.37), temperature=0.5, seed=7)
    _, params = recogniser.prompt(opened(recogniser, span(max_new_tokens=5)))
    assert params.max_new_tokens == 5


@pytest.mark.parametrize(
    ("fields", "param"),
    [({}, "file"), ({"prompt": "x"}, "prompt"), ({"prompt": "x", "max_new_tokens": 90}, "max_new_tokens")],
)
def test_what_does_not_fit_into_the_engine_is_refused_by_what_is_to_blame(recogniser, span, fields, param) -> None:
    recogniser.max_tokens = 140
    with pytest.raises(BadRequest, match=r"3.4 s of audio .* 140 together") as caught:
        recogniser.prompt(opened(recogniser, span(**fields)))
    assert caught.value.param == param


def written(recogniser: Any, state: Any, text: str, reason: str = "stop") -> list[Spoken]:
    ids = recogniser._tokenizer.encode_marked(text)
    steps = [StepOutput(step=i, codes=np.array([token]), prompt_tokens=59) for i, token in enumerate(ids)]
    if reason == "stop":
        steps.append(StepOutput(step=len(ids), prompt_tokens=59))
    steps[-1].finish_reason = reason
    return [piece for step in steps for piece in recogniser.output(state, step)]


def test_steps_become_pieces_and_an_end(recogniser, span) -> None:
    state = opened(recogniser, span(start=10.0, position=2, last=False, timed=True))
    text = "language Chinese<asr_text>你好吗 the system"
    pieces = written(recogniser, state, text)
    assert "".join(piece.text for piece in pieces) == "你好吗 the system"
    assert len([piece for piece in pieces if piece.text]) > 2
    assert {piece.language for piece in pieces} == {"zh"}
    assert {piece.position for piece in pieces} == {2}
    assert [piece.ending for piece in pieces[:-1]] == [None] * (len(pieces) - 1)
    assert pieces[-1].ending == Ending(False, 10.0, 3.37, "你好吗 the system", timed=True)
    assert pieces[-1].usage == Usage(59, len(recogniser._tokenizer.encode_marked(text)))


def test_a_forced_language_is_the_one_that_is_reported(recogniser, span) -> None:
    pieces = written(recogniser, opened(recogniser, span(language="de")), "Ja")
    assert {piece.language for piece in pieces} == {"de"}
    pieces = written(recogniser, opened(recogniser, span()), "language Elvish<asr_text>Ja")
    assert {piece.language for piece in pieces} == {None}
    (piece,) = written(recogniser, opened(recogniser, span()), "language None<asr_text>")
    assert (piece.text, piece.language, piece.ending.text) == ("", None, "")


def test_a_model_without_end_is_noted(recogniser, span, caplog) -> None:
    with caplog.at_level(logging.WARNING, "qwen3_asr"):
        pieces = written(recogniser, opened(recogniser, span(language="en")), "on and on", "length")
        assert pieces[-1].ending.text == "on and on"
        assert pieces[-1].ending.cut
        assert "3.4 s from 0.0 s on" in caplog.text
        caplog.clear()
        written(recogniser, opened(recogniser, span(language="en", max_new_tokens=3)), "on and on", "length")
        assert not caplog.records, "the client asked for it"


def test_the_model_refuses_what_it_does_not_know(model) -> None:
    good = {"tokens": np.array([1, model.config.audio_pad_id]), "embeds": {AUDIO: torch.zeros(1, 48)}}
    params = {"max_new_tokens": 1}
    model.check(Prompt(**good), SamplingParams(**params))
    for prompt, sampling, words in (
        ({"tokens": np.array([640])}, {}, "0 to 639"),
        ({"tokens": np.array([-1])}, {}, "0 to 639"),
        ({"embeds": {AUDIO: torch.zeros(2, 48)}}, {}, "1 audio positions"),
        ({"embeds": {AUDIO: torch.zeros(1, 47)}}, {}, "of 48"),
        ({"embeds": {}}, {}, "1 audio positions"),
        ({"embeds": {**good["embeds"], "video": torch.zeros(1)}}, {}, "'video'"),
        ({}, {"repetition_penalty": 1.1}, "repetition penalty"),
        ({}, {"extra": {"mirostat": 1}}, "mirostat"),
    ):
        with pytest.raises(BadRequest, match=words):
            model.check(Prompt(**{**good, **prompt}), SamplingParams(**{**params, **sampling}))


# Transcript -----------------------------------------------------------------------------------------------------------


def ended(position: int, text: str, *, last: bool = False, start: float = 0.0, **fields: Any) -> Spoken:
    seconds, timed, cut = fields.pop("seconds", 2.0), fields.pop("timed", False), fields.pop("cut", False)
    ending = Ending(last, start, seconds, text, timed=timed, cut=cut)
    return Spoken(position=position, text=text, ending=ending, **fields)


def joined(stages: dict[str, Any], items: Iterable[Any]) -> list[TranscriptChunk]:
    stage = stages["transcript"]
    state = stage.open()
    found = [chunk for item in items for chunk in stage.add(state, item, "ar")]
    return found + list(stage.result(state))


def test_texts_of_spans_are_joined_by_what_their_language_puts_between_sentences(stages) -> None:
    def said(first: str, second: str, language: str | None) -> str:
        items = [ended(0, first, language=language), ended(1, second, language=language, last=True)]
        return "".join(chunk.text for chunk in joined(stages, items))

    assert said("Yes.", "No.", "en") == "Yes. No."
    assert said("好。", "不。", "zh") == "好。不。"
    assert said("Yes.", "", "en") == "Yes."
    assert said("", "No.", "en") == "No."
    assert said("a", "b", None) == "a b"
    assert said("ก", "ข", "th") == "ก ข", "Thai has spaces between sentences"


@pytest.mark.parametrize("cut", [(), (0,), (1,), (0, 1)])
def test_a_cut_span_cuts_the_transcript(stages, cut) -> None:
    items = [ended(i, "x", last=i == 1, cut=i in cut) for i in range(2)]
    assert [chunk.finish_reason for chunk in joined(stages, items)] == [None, "length" if cut else "stop"]


def test_a_span_has_its_space_once(stages) -> None:
    pieces = [
        ended(0, "One.", language="en"),
        Spoken(position=1, text="Tw", language="en"),
        Spoken(position=1, text="o.", language="en"),
        ended(1, "", language="en", last=True),
    ]
    assert [chunk.text for chunk in joined(stages, pieces)] == ["One.", " Tw", "o.", ""]


def test_the_end_has_duration_and_language_and_every_span_its_usage(stages) -> None:
    items = [
        ended(0, "Yes.", language="en", usage=Usage(5, 2)),
        ended(1, "Doch.", language="de", usage=Usage(7, 3), start=2.0, seconds=30.0),
        ended(2, "", language=None, usage=Usage(1, 0), start=32.0, seconds=1.5, last=True),
    ]
    chunks = joined(stages, items)
    assert [chunk.usage for chunk in chunks] == [Usage(5, 2), Usage(7, 3), Usage(1, 0)]
    assert [chunk.language for chunk in chunks] == ["en", "de", "de"], "that of most of the file"
    assert [chunk.duration for chunk in chunks] == [None, None, 33.5]
    assert not any(chunk.segments for chunk in chunks), "nobody knows any times"


def test_segments_come_with_their_times(stages) -> None:
    units = [Unit("ok", 0, 2, 0.5, 0.9)]
    first, second = ended(0, "ok", timed=True), ended(1, "", timed=True, start=2.0, last=True)
    assert first.ending is not None
    assert second.ending is not None
    items = [
        first,
        second,
        Aligned(position=0, units=units, ending=first.ending),
        Aligned(position=1, units=[], ending=second.ending),
    ]
    segments = [segment for chunk in joined(stages, items) for segment in chunk.segments]
    assert [(s.start, s.end, s.text) for s in segments] == [(0.5, 0.9, "ok")]
    with pytest.raises(StageFailed, match="2 spans, 1 of them aligned"):
        joined(stages, items[:3])
    with pytest.raises(StageFailed, match="came where 0 was expected"):
        joined(stages, [first, second, items[3]])


@pytest.mark.parametrize("positions", [[1], [0, 2], [0, 0], []])
def test_a_span_that_is_lost_or_doubled_is_an_error(stages, positions) -> None:
    with pytest.raises(StageFailed):
        joined(stages, [ended(position, "x") for position in positions])


def test_only_whole_spans_go_to_the_aligner(stages) -> None:
    stage = stages["texts"]
    last = ended(3, "x", language="en", last=True)
    assert list(stage.add(None, Spoken(position=3, text="x"), "ar")) == []
    assert list(stage.add(None, last, "ar")) == [SpanText(position=3, language="en", ending=last.ending)]
    assert list(stage.result(None)) == []


# Aligner --------------------------------------------------------------------------------------------------------------


def test_the_aligner_stage(stages, golden, meta, span) -> None:
    """The reference's cases, one for which nobody asked, and one in which nothing is said, in one batch."""
    cases = meta["rules"]["align"]
    languages = {"English": "en", "Chinese": "zh"}

    def item(position: int, wave: str, text: str, language: str | None, *, timed: bool = True) -> Joined:
        found = span(mel=golden[f"{wave}.mel"], position=position, timed=timed)
        ending = Ending(False, 0.0, 20.0, text, timed)
        return Joined(parts={SOUNDS: found, TEXTS: SpanText(position=position, language=language, ending=ending)})

    batch = [item(i, case["wav"], case["text"], languages[case["language"]]) for i, case in enumerate(cases)]
    batch += [item(3, "w1", "Hello", "en", timed=False), item(4, "w1", "", None)]
    found = stages["aligner"].encode(batch)
    for case, result in zip(cases, found, strict=False):
        assert [[unit.word, unit.start, unit.stop] for unit in result.units] == case["items"]
    assert [(result.asked, result.units == []) for result in found[3:]] == [(False, True), (True, True)]
    assert stages["aligner"].encode(batch[3:]) == found[3:]
    assert stages["aligner"].key(batch[0]) is None


@pytest.mark.parametrize("language", ["hi", "th", "ar", "tr"])
def test_what_is_heard_in_a_language_without_times(stages, span, language) -> None:
    """Its words are refused; its segment is the span with the text as it is."""

    def align(text: str, *, words: bool) -> Any:
        ending = Ending(False, 10.0, 3.0, text, timed=True, words=words)
        written = SpanText(position=0, language=language, ending=ending)
        return stages["aligner"].encode([Joined(parts={SOUNDS: span(timed=True), TEXTS: written})])[0]

    text = "नमस्ते दुनिया। कैसे हो"
    refused = align(text, words=True)
    assert isinstance(refused, BadRequest)
    assert refused.param == "timestamp_granularities"
    assert language in refused.message
    assert "zh, en, yue" in refused.message
    assert align("", words=True).units == []
    result = align(text, words=False)
    (segment,) = segments(text, result.units, 10.0, 3.0)
    assert (segment.start, segment.end, segment.text, segment.words) == (10.0, 13.0, text, [])


def test_words_of_japanese_need_nagisa_and_say_so(stages, span, wave, monkeypatch) -> None:
    """Segments do not, and no other language's words do."""
    monkeypatch.setattr("qwen3_asr.alignment.nagisa", lambda: None)
    monkeypatch.setattr("qwen3_asr.audio.nagisa", lambda: None)
    monkeypatch.setattr("qwen3_asr.units.nagisa", lambda: None)

    def align(language: str, *, words: bool) -> Any:
        ending = Ending(False, 0.0, 3.0, "今日は。", timed=True, words=words)
        written = SpanText(position=0, language=language, ending=ending)
        return stages["aligner"].encode([Joined(parts={SOUNDS: span(timed=True), TEXTS: written})])[0]

    refused = align("ja", words=True)
    assert isinstance(refused, BadRequest)
    assert "omni-recipes[qwen-ja]" in refused.message
    assert (refused.param, refused.code) == ("timestamp_granularities", "missing_dependency")
    assert [unit.word for unit in align("ja", words=False).units] == ["今", "日", "は"]
    assert isinstance(align("zh", words=True), Aligned)

    def process(language: str, *times: str) -> Any:
        request = TranscriptionRequest(audio=wav_of(wave("w1")), language=language, timestamps=list(times))
        return list(stages["audio"].process(request))

    with pytest.raises(BadRequest, match="qwen-ja"):
        process("ja", "segment", "word")
    assert process("ja", "segment")
    assert process("ko", "word")
