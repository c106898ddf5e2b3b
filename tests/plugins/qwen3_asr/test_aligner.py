"""Units of text, times that never run backwards, segments; the aligner itself against the reference."""

from __future__ import annotations

import numpy as np
import pytest

from qwen3_asr.aligner import prompt_ids
from qwen3_asr.languages import code_of
from qwen3_asr.messages import Unit
from qwen3_asr.times import repair, segments, timed
from qwen3_asr.tokenizer import AUDIO_END, AUDIO_START
from qwen3_asr.units import _of_words, nagisa, split_units

FLOAT = 5e-5


def names(units: list[Unit]) -> list[str]:
    return [unit.word for unit in units]


# The model ------------------------------------------------------------------------------------------------------------


def test_times_are_the_references(golden, meta, aligner) -> None:
    """All three cases at once: what they give does not depend on the batch."""
    model, encoder, tokenizer = aligner
    cases = meta["rules"]["align"]
    audio = encoder.encode([golden[f"{case['wav']}.mel"] for case in cases])
    units = [split_units(case["text"], code_of(case["language"])) for case in cases]
    prompts = [
        prompt_ids(tokenizer, model.config.timestamp_id, names(own), len(embeds))
        for own, embeds in zip(units, audio, strict=True)
    ]
    for case, own, prompt, logits in zip(cases, units, prompts, model.timestamp_logits(prompts, audio), strict=True):
        name = case["case"]
        assert names(own) == case["words"]
        assert prompt == golden[f"{name}.input_ids"].tolist()
        assert np.abs(logits.numpy() - golden[f"{name}.timestamp_logits"]).max() <= FLOAT
        classes = logits.argmax(-1)
        assert classes.tolist() == golden[f"{name}.timestamp_class"].tolist()
        found = timed(own, (classes * int(model.config.timestamp_ms)).tolist())
        assert [[unit.word, unit.start, unit.stop] for unit in found] == case["items"]


def test_the_references_bug_in_the_encoder_shows_in_the_times(golden, meta, folders, aligner) -> None:
    import torch

    from qwen3_asr.loader import load_encoder

    model, encoder, tokenizer = aligner
    endless = encoder.config.model_copy(update={"n_window_infer": 100_000})
    bug = load_encoder(folders.aligner, endless, device=encoder.device, dtype=torch.float32)
    (case,) = [case for case in meta["rules"]["align"] if case["case"] == "fa_long"]
    audio = bug.encode([golden["w3.mel"]])
    prompt = prompt_ids(tokenizer, model.config.timestamp_id, case["words"], len(audio[0]))
    (logits,) = model.timestamp_logits([prompt], audio)
    assert np.abs(logits.numpy() - golden["fa_long.timestamp_logits_fullattn"]).max() <= FLOAT


# Units ----------------------------------------------------------------------------------------------------------------

LATER = {"Japanese", "Korean"}


def test_units_are_the_references(meta, aligner) -> None:
    _, _, tokenizer = aligner
    for case in meta["rules"]["align_words"]:
        text = case["text"]
        units = split_units(text, code_of(case["language"]))
        if case["language"] in LATER:
            continue
        assert names(units) == case["words"]
        marked = tokenizer.encode_marked(case["input_text"])
        assert prompt_ids(tokenizer, tokenizer.id("<timestamp>"), names(units), 1) == marked
        at = 0
        for unit in units:
            assert at <= unit.begin < unit.end <= len(text)
            assert "".join(c for c in text[unit.begin : unit.end] if c.isalnum() or c == "'") == unit.word
            at = unit.end


def the(meta, language: str) -> dict[str, object]:
    (case,) = [case for case in meta["rules"]["align_words"] if case["language"] == language]
    return case


def test_japanese_words_are_those_of_nagisa(meta) -> None:
    assert nagisa() is not None, "pip install 'omni-recipes[qwen-ja]'"
    case = the(meta, "Japanese")
    assert names(split_units(case["text"], "ja")) == case["words"]


def test_words_of_somebody_else_are_found_in_the_text(meta) -> None:
    case = the(meta, "Japanese")
    units = list(_of_words(case["text"], [*case["words"], "。"]))
    assert names(units) == case["words"]
    assert [case["text"][unit.begin : unit.end] for unit in units] == case["words"]


@pytest.mark.parametrize(
    ("text", "words", "found"),
    [
        ("ＡＢＣ です", ["ABC", "です"], [("ABC", "ＡＢＣ"), ("です", "です")]),
        ("ﾄﾞｱを", ["ドア", "を"], [("ドア", "ﾄﾞｱ"), ("を", "を")]),
        ("㍿です", ["株式", "会社", "です"], [("株式会社", "㍿"), ("です", "です")]),
        ("か\u3099い", ["が", "い"], [("が", "か\u3099"), ("い", "い")]),
        ("はいA", ["もう", "A"], [("は", "は"), ("い", "い"), ("A", "A")]),
    ],
)
def test_words_that_somebody_has_normalised_are_the_texts_own_characters(text, words, found) -> None:
    assert [(unit.word, text[unit.begin : unit.end]) for unit in _of_words(text, words)] == found


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("नमस्ते दुनिया। कैसे हो", ["नमस्ते", "दुनिया", "कैसे", "हो"]),
        ("e\u0301te\u0301, c\u0327a", ["e\u0301te\u0301", "c\u0327a"]),
        ("l’été, it's 8h30. (U.S.) a-b", ["l’été", "it's", "8h30", "U.S", "a-b"]),
    ],
)
def test_words_are_the_texts_own_characters_with_their_marks(text, words) -> None:
    found = segments(text, spoken(text, [(0.0, 0.1)] * len(words)), 0.0, 1.0)
    assert [word.word for segment in found for word in segment.words] == words


def test_japanese_without_nagisa_is_timed_by_character(meta, monkeypatch) -> None:
    monkeypatch.setattr("qwen3_asr.units.nagisa", lambda: None)
    assert names(split_units("今日はOK、カード。", "ja")) == ["今", "日", "は", "OK", "カ", "ー", "ド"]
    # In a Japanese text of another language's rule kana are letters as others are.
    assert names(split_units("今日はOK", None)) == ["今", "日", "はOK"]


def test_korean_words_are_what_stands_between_spaces(meta) -> None:
    """As in transformers 5.24; the reference cuts particles off with a dictionary that it ships."""
    case = the(meta, "Korean")
    assert names(split_units(case["text"], "ko")) == ["오늘", "날씨가", "정말", "좋습니다"]
    assert "".join(names(split_units(case["text"], "ko"))) == "".join(case["words"])


def test_nagisa_is_looked_for_once() -> None:
    assert nagisa() is nagisa()


# Times ----------------------------------------------------------------------------------------------------------------


def test_repair(meta) -> None:
    for case in meta["rules"]["fix_timestamp"]:
        assert repair(case["i"]) == case["out"]
    assert repair([]) == []


def test_repaired_times_never_fall() -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        stamps = (rng.integers(0, 30, rng.integers(1, 40)) * 80).tolist()
        fixed = repair(stamps)
        assert fixed == sorted(fixed)
        assert fixed == stamps or sorted(stamps) != stamps


def spoken(text: str, times: list[tuple[float, float]]) -> list[Unit]:
    units = split_units(text, "en")
    return [Unit(unit.word, unit.begin, unit.end, *pair) for unit, pair in zip(units, times, strict=True)]


def test_segments_are_sentences_in_the_files_time() -> None:
    text = "Hello there. Who is it? The U.S. team, e.g. me"
    units = spoken(text, [(i / 4, i / 4 + 0.2) for i in range(10)])
    found = segments(text, units, start=60.0, seconds=3.0)
    assert [(segment.text, segment.start, segment.end) for segment in found] == [
        ("Hello there.", 60.0, 60.45),
        ("Who is it?", 60.5, 61.2),
        ("The U.S. team, e.g. me", 61.25, 62.45),
    ]
    assert [word.word for word in found[2].words] == ["The", "U.S", "team", "e.g", "me"]
    assert (found[2].words[1].start, found[2].words[1].end) == (61.5, 61.7)


def test_a_silence_ends_a_segment_and_ideographs_need_no_space() -> None:
    text = "so and so"
    found = segments(text, spoken(text, [(0, 0.2), (0.3, 0.5), (1.5, 1.7)]), 0.0, 2.0)
    assert [segment.text for segment in found] == ["so and", "so"]
    text = "今天好。走吧！"
    found = segments(text, spoken(text, [(i / 10, i / 10) for i in range(5)]), 0.0, 2.0)
    assert [segment.text for segment in found] == ["今天好。", "走吧！"]


SENTENCES = (
    ("en", ["Hola.", "¿Qué tal?", "¡Muy bien!"]),
    ("en", ["He said no.", '"Why not?"', '"Because."', "She left."]),
    ("ja", ["「行く。」", "「だめ。」"]),
    ("en", ["Dr. Smith came.", "He left."]),
    ("fr", ["« Oui. »", "« Non ? »", "Vraiment !", "Oui."]),
    ("de", ["»Ja.«", "»Nein.«"]),
    ("de", ["„Ja.“", "„Warum?“, fragte er.", "Am 3. Oktober."]),
    ("en", ["“Oh!” she said… – ok?"]),
    ("es", ["—Hola.", "—Adiós.", "(Se va.)", "Fin."]),
    ("en", ["J. R. Tolkien of the U.S. Army.", "It was 1995.", "[Music] Then 3.5 m."]),
    ("en", ['He said ("yes.").', "Then he went."]),
    ("zh", ["今天好。", "“走吧！”", "他说。"]),
)


@pytest.mark.parametrize(("language", "sentences"), SENTENCES)
def test_what_opens_a_sentence_belongs_to_it(language, sentences, monkeypatch) -> None:
    monkeypatch.setattr("qwen3_asr.units.nagisa", lambda: None)
    text = ("" if language in ("ja", "zh") else " ").join(sentences)
    units = split_units(text, language)
    timed = [Unit(unit.word, unit.begin, unit.end, i / 10, i / 10) for i, unit in enumerate(units)]
    assert [segment.text for segment in segments(text, timed, 0.0, 100.0)] == sentences


def test_what_opens_goes_on_after_a_silence() -> None:
    text = 'he said (and "why" ...'
    found = segments(text, spoken(text, [(0, 0.1), (0.1, 0.2), (2, 2.1), (4, 4.1)]), 0.0, 9.0)
    assert [segment.text for segment in found] == ["he said", "(and", '"why" ...']


def test_times_beyond_the_span_are_its_end() -> None:
    found = segments("a b", spoken("a b", [(0, 0.1), (7.0, 9.0)]), 10.0, 1.5)
    assert [(word.start, word.end) for segment in found for word in segment.words] == [(10.0, 10.1), (11.5, 11.5)]


def test_what_stands_around_the_words_belongs_to_the_segments() -> None:
    text = "“Oh!” she said… – ok?"
    found = segments(text, spoken(text, [(0.1, 0.2)] * 4), 0.0, 1.0)
    assert "".join(segment.text.replace(" ", "") for segment in found) == text.replace(" ", "")


def test_a_text_without_words_is_as_long_as_its_span() -> None:
    (found,) = segments("…", [], 3.0, 2.0)
    assert (found.start, found.end, found.text, found.words) == (3.0, 5.0, "…", [])
    assert segments("", [], 3.0, 2.0) == []


def test_a_text_without_units_has_one_pair_of_timestamps(aligner) -> None:
    _, _, tokenizer = aligner
    ids = prompt_ids(tokenizer, 618, [], 2)
    assert ids == [tokenizer.id(AUDIO_START), *[tokenizer.audio_pad] * 2, tokenizer.id(AUDIO_END), 618, 618]
