"""What each kind of model takes, refuses, and makes of a request."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from qwen_serving import wav_of

from omni import BadRequest, ReferenceAudio, SpeechRequest, StageContext, Usage
from omni.config import RecipeConfig
from omni.engines.base import StepOutput
from omni.loading import fit_task
from omni.plugins import Plugins
from qwen3_tts.messages import Part, Piece, Ready, Voice
from qwen3_tts.prompts import frames_for
from qwen3_tts.reference import CollectVoice
from qwen3_tts.stages import Prepare, TalkerStage

TEXT = "Good morning, how are you today?"
RECIPES = {
    "base": "qwen3-tts-0.6b-base",
    "custom_voice": "qwen3-tts-0.6b-customvoice",
    "voice_design": "qwen3-tts-1.7b-voicedesign",
}


def voice(seconds: float = 0.5, text: str = "") -> ReferenceAudio:
    time = np.arange(round(seconds * 24_000)) / 24_000
    samples = 8000 * np.sin(2 * np.pi * 150 * time)
    return ReferenceAudio(audio=np.frombuffer(wav_of(samples), np.uint8), text=text)


def stage_of(cls: Any, kind: str, folder: Path) -> Any:
    recipe = fit_task(RecipeConfig(Plugins.load().recipe(RECIPES[kind])), folder).recipe
    stage = cls(cls.Options(), StageContext(recipe, "stage", weights=folder))
    stage.load()
    return stage


@pytest.fixture(scope="module")
def prepare(folders) -> dict[str, Prepare]:
    return {kind: stage_of(Prepare, kind, folder) for kind, folder in folders.items()}


def pieces(stage: Prepare, **fields: Any) -> list[Piece]:
    request = SpeechRequest(**{"text": TEXT, **fields})
    return [part.piece for part in stage.process(request) if part.piece is not None]


@pytest.mark.parametrize(
    ("kind", "fields", "param"),
    [
        ("base", {}, "references"),
        ("base", {"references": [voice(), voice()]}, "references"),
        ("base", {"references": [voice()], "voice": "vivian"}, "voice"),
        ("base", {"references": [voice()], "instructions": "Whisper."}, "instructions"),
        ("base", {"references": [voice(0.05)]}, "references[0].audio"),
        ("base", {"references": [voice(181.0)]}, "references[0].audio"),
        ("base", {"references": [ReferenceAudio(audio=np.zeros(100, np.uint8))]}, "references[0].audio"),
        ("custom_voice", {"references": [voice()]}, "references"),
        ("custom_voice", {"voice": "nobody"}, "voice"),
        ("custom_voice", {"instructions": "Whisper."}, "instructions"),
        ("custom_voice", {"language": "sv"}, "language"),
        ("custom_voice", {"language": "beijing_dialect"}, "language"),
        ("voice_design", {"references": [voice()]}, "references"),
        ("voice_design", {"voice": "vivian"}, "voice"),
        ("voice_design", {"params": {"chunk_length": 100}}, "chunk_length"),
        ("voice_design", {"text": "word " * 3000}, "input"),
        ("custom_voice", {"params": {"temperature": 0.0, "subtalker_temperature": 0.5}}, "subtalker_temperature"),
        ("custom_voice", {"params": {"top_k": 1, "subtalker_top_k": 50}}, "subtalker_top_k"),
    ],
)
def test_refused(prepare, kind: str, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        pieces(prepare[kind], **fields)
    assert caught.value.param == param


def test_a_voice_by_any_spelling_and_the_default(prepare) -> None:
    for name, speaker in (("Uncle_Fu", "uncle_fu"), ("sohee", "sohee"), ("", "vivian")):
        assert pieces(prepare["custom_voice"], voice=name)[0].speaker == speaker


def test_languages(prepare) -> None:
    for code, name in (("zh", "chinese"), ("pt", "portuguese"), ("auto", None), (None, None)):
        assert pieces(prepare["custom_voice"], language=code)[0].language == name


def test_a_reference_with_text_is_gone_on_from_and_one_without_is_a_sound(prepare) -> None:
    for text in ("Nothing was said. ", ""):
        first, second = list(
            prepare["base"].process(SpeechRequest(text=TEXT, references=[voice(0.5, text)], language="en"))
        )
        assert first.audio.shape == (12_000,)
        assert first.with_codes == bool(text)
        assert second.piece.cloned
        assert second.piece.reference_text == text.strip()
        assert not second.piece.whole


def test_numbers_come_from_the_request_then_from_the_checkpoint(prepare, folders, tmp_path) -> None:
    sampling = pieces(prepare["custom_voice"], params={"temperature": 0.5, "subtalker_top_p": 0.7})[0].sampling
    assert (sampling.temperature, sampling.top_k, sampling.repetition_penalty) == (0.5, 50, 1.05)
    assert (sampling.subtalker_temperature, sampling.subtalker_top_p) == (0.9, 0.7)
    folder = tmp_path / "greedy"
    shutil.copytree(folders["custom_voice"], folder)
    values = {"do_sample": False, "subtalker_dosample": False, "top_k": 7, "repetition_penalty": 1.2}
    (folder / "generation_config.json").write_text(json.dumps(values))
    greedy = stage_of(Prepare, "custom_voice", folder)
    sampling = pieces(greedy)[0].sampling
    assert (sampling.temperature, sampling.subtalker_temperature) == (0, 0)
    assert (sampling.top_k, sampling.repetition_penalty) == (7, 1.2)
    assert pieces(greedy, params={"temperature": 0.4})[0].sampling.temperature == 0.4


def test_greedy_is_greedy_everywhere(prepare) -> None:
    sampling = pieces(prepare["custom_voice"], params={"temperature": 0.0})[0].sampling
    assert (sampling.temperature, sampling.subtalker_temperature) == (0, 0)
    sampling = pieces(prepare["custom_voice"], params={"top_k": 1})[0].sampling
    assert (sampling.top_k, sampling.subtalker_top_k) == (1, 1)


def test_long_text_is_cut_at_sentence_ends(prepare) -> None:
    text = " ".join(f"This is sentence number {i} of a long text." for i in range(40))
    found = pieces(prepare["custom_voice"], text=text, seed=7, params={"chunk_length": 200})
    assert len(found) > 5
    assert " ".join(piece.text for piece in found) == text
    assert all(len(piece.text) <= 200 and piece.text.endswith(".") for piece in found)
    assert [piece.seed for piece in found] == list(range(7, 7 + len(found)))
    assert [piece.text for piece in pieces(prepare["voice_design"], text=text)] == [text]


# The stage before the engine ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def talker(folders) -> dict[str, TalkerStage]:
    return {kind: stage_of(TalkerStage, kind, folder) for kind, folder in folders.items()}


def test_limit_follows_from_the_text(prepare, talker, builders) -> None:
    for text in ("Hi.", TEXT, "其实我真的有发现"):
        (piece,) = pieces(prepare["custom_voice"], text=text)
        _, params = talker["custom_voice"].prompt(talker["custom_voice"].open(Ready(piece=piece)))
        assert params.max_new_tokens == frames_for(len(builders["base"].ids(text))) < 8192
    (piece,) = pieces(prepare["custom_voice"], params={"max_new_tokens": 5})
    _, params = talker["custom_voice"].prompt(talker["custom_voice"].open(Ready(piece=piece)))
    assert params.max_new_tokens == 5
    (piece,) = pieces(prepare["voice_design"], text="word " * 500)
    _, params = talker["voice_design"].prompt(talker["voice_design"].open(Ready(piece=piece)))
    assert params.max_new_tokens == 8192


def test_both_kinds_of_codes_keep_their_numbers(prepare, talker) -> None:
    fields = {"top_k": 5, "subtalker_top_k": 0, "temperature": 0.7, "subtalker_temperature": 0.3, "top_p": 0.6}
    (piece,) = pieces(prepare["custom_voice"], params=fields)
    _, params = talker["custom_voice"].prompt(talker["custom_voice"].open(Ready(piece=piece)))
    # The engine is told what holds both.
    assert (params.top_k, params.temperature, params.top_p) == (0, 0.7, 0.6)
    assert params.extra["top_k"] == 5
    assert params.extra["subtalker_top_k"] == 0
    assert params.extra["subtalker_temperature"] == 0.3


def test_only_the_first_frame_of_a_piece_says_what_comes_before(prepare, talker) -> None:
    stage = talker["base"]
    piece = pieces(prepare["base"], references=[voice(text="So.")])[0]
    codes = np.arange(32, dtype=np.int32).reshape(16, 2)
    state = stage.open(Ready(piece=piece, voice=Voice(vector=np.zeros(48, np.float32), codes=codes)))
    found = []
    for index, reason in ((0, None), (1, None), (2, "stop")):
        frame = None if reason else np.zeros(16, np.int64)
        found += stage.output(state, StepOutput(step=index, codes=frame, finish_reason=reason, prompt_tokens=9))
    assert np.array_equal(found[0].after, codes)
    assert [frames.after for frames in found[1:]] == [None, None]
    assert [frames.finish_reason for frames in found] == [None, None, "stop"]
    assert sum(frames.usage.output_tokens for frames in found) == 2
    assert found[-1].usage == Usage(input_tokens=9)


# Joining a request's parts --------------------------------------------------------------------------------------


def test_pieces_wait_for_their_voice(prepare) -> None:
    collect = CollectVoice(None, None)
    state = collect.open()
    cloned = pieces(prepare["base"], references=[voice()])[0]
    own = pieces(prepare["custom_voice"])[0]
    there = Voice(vector=np.zeros(48, np.float32), codes=np.zeros((16, 0), np.int32))
    assert list(collect.add(state, Part(piece=cloned), "reference")) == []
    (ready,) = collect.add(state, Part(voice=there), "reference")
    assert ready == Ready(piece=cloned, voice=there)
    assert next(iter(collect.add(state, Part(piece=cloned), "reference"))).voice is there
    assert next(iter(collect.add(collect.open(), Part(piece=own), "reference"))).voice is None
    state = collect.open()
    list(collect.add(state, Part(piece=cloned), "reference"))
    with pytest.raises(Exception, match="before its voice"):
        list(collect.result(state))
