"""When a window is written again, how far, and what is taken for invented: a scripted model in place of Whisper."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from whisper_asr.decoding import NoSpeech, Window, usual_tokens

TIMES = 1000  # tokens from here on are times
PROMPT = [1, 2, 3]
REPEATED = [7] * 400
VARIED = [*range(10, 410)]


class Script:
    """Writes ``plain``, or with a penalty ``second``: ``(tokens, mean log probability)``, as far as it may."""

    max_length, time_precision = 448, 0.02

    def __init__(self, no_speech: float, plain: tuple[list[int], float], second: tuple[list[int], float]) -> None:
        self.no_speech, self.plain, self.second = no_speech, plain, second
        self.asked: list[tuple[int, float]] = []
        self.model = SimpleNamespace(generate=self.generate)

    def generate(self, _: Any, prompts: list[list[int]], *, max_length: int, **options: Any) -> list[Any]:
        limit = min(max_length // 2, max_length - len(prompts[0]))
        penalty = options["repetition_penalty"]
        self.asked.append((limit, penalty))
        tokens, logprob = self.plain if penalty == 1.0 else self.second
        tokens = tokens[:limit]
        score = logprob * (len(tokens) + 1) / len(tokens)
        return [SimpleNamespace(sequences_ids=[tokens], scores=[score], no_speech_prob=self.no_speech)]


def write(script: Script, usual: int = 80) -> tuple[Any, float, list[tuple[int, float]]]:
    options = SimpleNamespace(
        max_new_tokens=usual,
        temperatures=[0.0],
        beam_size=5,
        patience=1,
        best_of=5,
        length_penalty=1,
        suppress_blank=True,
        suppress_tokens=(),
        max_initial_timestamp=1.0,
    )
    tokenizer = SimpleNamespace(timestamp_begin=TIMES, decode=lambda tokens: "".join(map(chr, tokens)))
    result, logprob, _, _ = Window(script, None, PROMPT, tokenizer, options).write()
    return result, logprob, script.asked[1:]


def test_an_ordinary_text_is_written_once() -> None:
    script = Script(0.01, (VARIED[:40], -0.2), ([], 0.0))
    result, logprob, asked = write(script)
    assert result.sequences_ids == [VARIED[:40]]
    assert logprob == pytest.approx(-0.2)
    assert asked == [(80, 1.0)]
    assert script.asked[0][0] <= 2  # how likely speech is, is known from the first token


@pytest.mark.parametrize("no_speech", [0.01, 0.9])
def test_a_text_of_more_tokens_than_usual_gets_them(no_speech: float) -> None:
    result, _, asked = write(Script(no_speech, (VARIED[:200], -0.2), ([], 0.0)))
    assert result.sequences_ids == [VARIED[:200]]
    assert asked[-1] == (224, 1.0)


@pytest.mark.parametrize("no_speech", [0.35, 0.58, 0.73, 0.94])
def test_a_loop_that_is_unlikely_under_a_penalty_is_no_speech(no_speech: float) -> None:
    result, logprob, asked = write(Script(no_speech, (REPEATED, -0.1), (VARIED[:20], -1.6)))
    assert isinstance(result, NoSpeech)
    # What makes the library leave it out: more than any limit, less than any other.
    assert result.no_speech_prob > 1
    assert logprob < -1e9
    assert max(limit for limit, _ in asked) < 224


@pytest.mark.parametrize("no_speech", [0.01, 0.3, 0.58, 0.8])
def test_a_word_said_again_and_again_is_kept(no_speech: float) -> None:
    result, _, _ = write(Script(no_speech, (REPEATED[:60], -0.1), (REPEATED[:50], -0.5)))
    assert result.sequences_ids == [REPEATED[:60]]


@pytest.mark.parametrize("no_speech", [0.01, 0.58])
def test_speech_in_a_loop_that_does_not_end_is_taken_from_the_second_writing(no_speech: float) -> None:
    result, logprob, _ = write(Script(no_speech, (REPEATED, -0.1), (REPEATED[:18], -0.5)))
    assert result.sequences_ids == [REPEATED[:18]]
    assert logprob == pytest.approx(-0.5)


def test_all_tokens_of_a_window_with_times_are_as_good_as_an_end() -> None:
    tokens = [*VARIED[:100], TIMES + 500, TIMES + 500, *VARIED]
    result, _, _ = write(Script(0.01, (tokens, -0.2), ([], 0.0)))
    assert result.sequences_ids == [tokens[:224]]


@pytest.mark.parametrize(("seconds", "tokens"), [(0.5, 36), (5, 72), (23.9, 224), (30, 224)])
def test_usual_tokens(seconds: float, tokens: int) -> None:
    assert usual_tokens(seconds) == tokens
