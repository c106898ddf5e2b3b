"""Sound: repeatable, at the speed that was asked for, complete."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hibari_tts
from hibari_tts.stages import HOP, Join, Sentence, Spoken
from omni import BadRequest, DecodeJob, SpeechRequest, StageContext, StageFailed
from omni.messages import decode, encode

TEXT = "The train to the coast leaves early in the morning. We took warm coats and a flask of tea."
Speak = Callable[..., np.ndarray]


def test_the_same_seed_repeats_and_another_differs(speak: Speak) -> None:
    first = speak(TEXT, seed=7)
    assert np.array_equal(first, speak(TEXT, seed=7))
    assert not np.array_equal(first, speak(TEXT, seed=8))


def test_no_seed_is_seed_zero_and_any_integer_is_a_seed(speak: Speak) -> None:
    assert np.array_equal(speak("Hello."), speak("Hello.", seed=0))
    for seed in (-1, 2**63 - 1, 2**70):
        assert len(speak("Hello.", seed=seed))


@pytest.mark.parametrize("speed", [0.5, 2.0])
def test_speed_is_the_models_own(speak: Speak, speed: float) -> None:
    normal, changed = len(speak(TEXT)), len(speak(TEXT, speed=speed))
    assert changed == pytest.approx(normal / speed, rel=0.2)


@pytest.mark.parametrize(
    ("field", "value"), [("speed", 0.49), ("speed", 2.01), ("speed", float("nan")), ("voice", "fenrir")]
)
def test_what_the_voice_cannot_do_is_refused(voice: dict[str, Any], field: str, value: Any) -> None:
    with pytest.raises(BadRequest) as error:
        voice["text"].process(SpeechRequest(text="Hello.", **{field: value}))
    assert error.value.param == field


def test_chunks_leave_sentence_by_sentence_with_their_usage(voice: dict[str, Any], drive: Any) -> None:
    chunks = list(drive.run_speech(voice, SpeechRequest(text=TEXT)))
    assert [chunk.finish_reason for chunk in chunks] == [None, "stop"]
    for chunk in chunks:
        assert chunk.sample_rate == 24_000
        assert chunk.samples.dtype == np.float32
        assert 0.1 < np.abs(chunk.samples).max() <= 1.0
        assert chunk.usage.output_tokens * HOP == len(chunk.samples)
        assert 20 < chunk.usage.input_tokens < 80


def test_a_sentence_leaves_before_the_next_one_is_spoken(voice: dict[str, Any], drive: Any) -> None:
    taken: list[int] = []

    def watched() -> Any:
        for item in voice["text"].process(SpeechRequest(text="One here. Two there. Three more. Four at last.")):
            taken.append(item.position)
            yield item

    stream = drive.aggregate(voice["join"], drive.decode_stream(voice["synthesis"], watched()), "synthesis")
    next(stream)
    assert taken == [0]
    stream.close()


def test_lines_are_sentences_and_quotes_do_not_vanish_with_words(voice: dict[str, Any]) -> None:
    text = "Title\nDr. Smith said: “It is late.” Then (at 5 p.m.) he left!\n\n- one\n- two\n***\n"
    parts = [part.text for part in voice["text"].process(SpeechRequest(text=text))]
    assert parts == ["Title", "Dr. Smith said: “It is late.", "Then (at 5 p.m.) he left!", "- one", "- two"]


def test_streams_of_one_worker_do_not_mix(voice: dict[str, Any], drive: Any) -> None:
    """Two streams share steps; each must sound as it does alone."""
    synthesis = voice["synthesis"]
    requests = [SpeechRequest(text=TEXT, seed=seed) for seed in (1, 2)]
    alone = [[c.samples for c in drive.run_speech(voice, request)] for request in requests]
    items = [list(voice["text"].process(request)) for request in requests]
    states = [synthesis.open(stream[0]) for stream in items]
    together: list[list[np.ndarray]] = [[], []]
    for step in range(2):
        jobs = [DecodeJob(state, [stream[step]], step == 1) for state, stream in zip(states, items, strict=True)]
        for out, given in zip(together, synthesis.decode(jobs), strict=True):
            out += [spoken.samples for spoken in given]
    for one, other in zip(alone, together, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_four_threads_give_the_same_bits(speak: Speak) -> None:
    texts = [f"Bread number {n} is still warm, take it with you." for n in ("one", "two", "three", "four")]
    alone = [speak(text, seed=3) for text in texts]
    results: list[np.ndarray | None] = [None] * 4

    def work(index: int) -> None:
        for _ in range(3):
            results[index] = speak(texts[index], seed=3)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one, other in zip(alone, results, strict=True):
        assert other is not None
        assert np.array_equal(one, other)


def _join() -> Join:
    return Join(Join.Options(), StageContext(hibari_tts.omni_recipes()[0], "join"))


def _spoken(position: int, last: bool = False, samples: int = HOP, frames: int = 1) -> Spoken:
    return Spoken(position=position, last=last, samples=np.zeros(samples, np.float32), frames=frames, inputs=1)


@pytest.mark.parametrize(
    "items",
    [
        [],
        [_spoken(0)],
        [_spoken(1, last=True)],
        [_spoken(0), _spoken(0, last=True)],
        [_spoken(0), _spoken(2, last=True)],
        [_spoken(0, last=True), _spoken(1)],
        [_spoken(0, last=True, samples=HOP - 1)],
    ],
    ids=["nothing", "no last", "first lost", "doubled", "middle lost", "after the last", "samples lost"],
)
def test_lost_speech_is_an_error(drive: Any, items: list[Spoken]) -> None:
    with pytest.raises(StageFailed):
        list(drive.aggregate(_join(), items, "synthesis"))


def test_all_there_is_no_error(drive: Any) -> None:
    assert len(list(drive.aggregate(_join(), [_spoken(0), _spoken(1, last=True)], "synthesis"))) == 2


def test_a_sentence_that_makes_no_sound_is_an_error(voice: dict[str, Any]) -> None:
    silent = Sentence(position=0, last=True, text="?", phonemes="", speed=1.0, seed=0)
    with pytest.raises(StageFailed, match="no valid sound"):
        voice["synthesis"].decode([DecodeJob(voice["synthesis"].open(silent), [silent], True)])


def test_messages_cross_a_process_boundary(voice: dict[str, Any]) -> None:
    sentence = next(iter(voice["text"].process(SpeechRequest(text="Hello."))))
    assert decode(Sentence, *encode(sentence)) == sentence
    [[spoken]] = voice["synthesis"].decode([DecodeJob(voice["synthesis"].open(sentence), [sentence], True)])
    assert np.array_equal(decode(Spoken, *encode(spoken)).samples, spoken.samples)


def _run(code: str, home: Path) -> str:
    environment = {"HOME": str(home), "PATH": "", "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True, timeout=60
    ).stdout


def test_declaring_the_recipe_is_light(tmp_path: Path) -> None:
    code = """
import sys, hibari_tts
hibari_tts.omni_recipes()
heavy = {"numpy.fft", "onnxruntime", "hibari", "torch", "transformers", "ctranslate2", "scipy"}
print(sorted(heavy & set(sys.modules)))
"""
    assert _run(code, tmp_path).strip() == "[]"


def test_speaking_needs_no_network_and_leaves_home_alone(tmp_path: Path) -> None:
    code = """
import socket
def refuse(*args, **kwargs):
    raise AssertionError("network")
socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse
import hibari_tts
from hibari_tts import stages
from omni import DecodeJob, SpeechRequest, StageContext
recipe = hibari_tts.omni_recipes()[0]
text = stages.Text(stages.Text.Options(), StageContext(recipe, "text"))
synthesis = stages.Synthesis(stages.Synthesis.Options(), StageContext(recipe, "synthesis"))
text.load(), synthesis.load()
items = list(text.process(SpeechRequest(text="Hello.")))
print(len(synthesis.decode([DecodeJob(synthesis.open(items[0]), items, True)])[0][0].samples))
"""
    assert int(_run(code, tmp_path)) > 20_000
    assert list(tmp_path.rglob("*")) == []
