"""Long audio: where it is cut, and that nothing of it is lost."""

from __future__ import annotations

import tracemalloc
from itertools import pairwise

import numpy as np
import pytest
from asr_serving import wav_of

from omni import BadRequest, StageContext, TranscriptionRequest
from omni.audio import AudioSpan
from omni.testing import tone
from qwen3_asr import omni_recipes
from qwen3_asr.audio import Audio, AudioOptions
from qwen3_asr.features import log_mel
from qwen3_asr.messages import Span
from qwen3_asr.spans import QuietSplitter

RATE = 16_000


def cut(samples: np.ndarray, longest: float, search: float, block: int) -> list[AudioSpan]:
    splitter = QuietSplitter(RATE, longest, search)
    spans = [span for at in range(0, len(samples), block) for span in splitter.push(samples[at : at + block])]
    return spans + list(splitter.finish())


@pytest.mark.parametrize("block", [997, 65_536, 1 << 20])
def test_cuts_are_the_references_whatever_the_blocks(meta, wave, block) -> None:
    for case in meta["rules"]["split"]:
        samples = wave(case["wav"])
        spans = cut(samples, case["max_chunk_sec"], case["search_expand_sec"], block)
        wanted = [(round(chunk["offset_sec"] * RATE), chunk["samples"]) for chunk in case["chunks"]]
        # The reference gives a part of less than half a second filled up.
        assert [(span.offset, max(len(span.samples), RATE // 2)) for span in spans] == wanted
        assert np.array_equal(np.concatenate([span.samples for span in spans]), samples)


def test_silence_is_cut_too() -> None:
    spans = cut(np.zeros(10 * RATE, np.float32), 2.0, 1.0, 4000)
    assert sum(len(span.samples) for span in spans) == 10 * RATE
    assert all(RATE <= len(span.samples) <= 3 * RATE for span in spans[:-1])


def audio(**options: float) -> Audio:
    recipe = next(recipe for recipe in omni_recipes() if recipe.name == "qwen3-asr-0.6b")
    stage = Audio(AudioOptions(**options), StageContext(recipe, "audio"))
    stage.load()
    return stage


def spans_of(samples: np.ndarray, *, options: dict[str, float] | None = None, **fields: object) -> list[Span]:
    request = TranscriptionRequest(audio=wav_of(samples), **fields)  # type: ignore[arg-type]
    return list(audio(**(options or {})).process(request))


def test_a_short_file_is_one_span_with_its_own_features(wave) -> None:
    (span,) = spans_of(wave("w1"), language="de", prompt="names", temperature=0.5, seed=3, params={"max_new_tokens": 9})
    assert np.array_equal(span.mel, log_mel(wave("w1")))
    assert (span.position, span.last, span.start) == (0, True, 0.0)
    assert span.seconds == len(wave("w1")) / RATE
    assert (span.language, span.prompt, span.temperature, span.seed, span.max_new_tokens) == ("de", "names", 0.5, 3, 9)
    assert not span.timed
    assert span.written is None


def test_spans_follow_each_other_and_have_seeds_of_their_own(wave) -> None:
    spans = spans_of(wave("w3"), options={"span_seconds": 3}, seed=10)
    assert [span.position for span in spans] == list(range(len(spans)))
    assert [span.last for span in spans] == [False] * (len(spans) - 1) + [True]
    assert [span.seed for span in spans] == [10 + i for i in range(len(spans))]
    for span, following in pairwise(spans):
        assert span.start + span.seconds == pytest.approx(following.start, abs=1e-9)
    assert spans[-1].start + spans[-1].seconds == len(wave("w3")) / RATE


def test_times_need_shorter_spans(wave) -> None:
    sound = np.tile(wave("w3"), 25)  # 265 s
    assert len(spans_of(sound, options={"span_seconds": 1000})) == 1
    timed = spans_of(sound, options={"span_seconds": 1000}, timestamps=["word"])
    assert len(timed) == 2
    assert all(span.timed and span.seconds <= 185 for span in timed)


def test_a_part_of_less_than_half_a_second_is_filled_up_and_a_whole_file_is_not() -> None:
    sound = tone(2.2)
    *_, last = spans_of(sound, options={"span_seconds": 1.0, "search_seconds": 0.1})
    assert last.seconds < 0.4
    assert last.mel.shape[1] == 50
    assert [span.mel.shape[1] for span in spans_of(sound[:4800])] == [30]


@pytest.mark.parametrize("count", [1, 20, 399])
def test_a_click_has_features_too(count: int) -> None:
    (span,) = spans_of(tone(1.0)[:count])
    assert span.mel.shape == (128, 2)
    assert span.seconds == count / RATE
    assert np.isfinite(span.mel).all()


def test_what_is_louder_than_full_scale_is_brought_down_to_it(wave) -> None:
    from scipy.io import wavfile  # writes floating-point wav

    def span(samples: np.ndarray) -> Span:
        import io

        file = io.BytesIO()
        wavfile.write(file, RATE, samples.astype(np.float32))
        request = TranscriptionRequest(audio=np.frombuffer(file.getvalue(), np.uint8))
        (found,) = audio().process(request)
        return found

    sound = wave("w1") / np.abs(wave("w1")).max()
    assert np.abs(span(sound * 4).mel - span(sound).mel).max() < 1e-5
    assert np.abs(span(sound / 4).mel - span(sound).mel).max() > 0.1


def test_a_language_that_the_model_lacks_is_refused(wave) -> None:
    with pytest.raises(BadRequest, match="'sw'") as caught:
        spans_of(wave("w1"), language="sw")
    assert caught.value.param == "language"


def test_memory_does_not_grow_with_the_file() -> None:
    """Numpy's arrays, that is: a span at a time is looked at."""
    stage = audio(span_seconds=5)
    peaks = []
    for minutes in (1, 4):
        sound = wav_of(np.tile(tone(10.0), 6 * minutes))
        tracemalloc.start()
        try:
            assert sum(span.seconds for span in stage.process(TranscriptionRequest(audio=sound))) == 60 * minutes
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    assert peaks[1] < peaks[0] + 1e6
