"""Every check on recipes that keep all promises, and on ones that break just the promise it is about."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import broken_asr
import broken_params
import broken_sound
import broken_tts
import numpy as np
import pytest
import toy_asr
import toy_tts

from omni import Busy, SpeechRequest, TranscriptionRequest
from omni.audio import AudioOutput
from omni.pipeline import Pipeline
from omni.plugins import Plugins
from omni.server import transcriptions
from omni.testing import SENTENCES, Samples, wav
from omni.testing.checks import CHECKS, Check
from omni.testing.kit import ConformanceFailure, Kit, NotApplicable

BY_NAME = {check.name: check for check in CHECKS}
REQUESTS = tuple(SpeechRequest(text=text, voice="low", language="en") for text in SENTENCES)
SECTION = (SpeechRequest(text="Section § 5."),)
LOW = (SpeechRequest(text="A word.", params={"pitch": 0.75}),)
CLIPS = toy_asr.samples().requests

tts, asr = toy_tts.recipe, toy_asr.recipe

FAULTS: dict[str, list[tuple[Any, str]]] = {
    "recipe_is_complete": [
        (tts(license="TODO"), "license"),
        (tts(summary="-"), "summary"),
        (Samples(REQUESTS, skip={"no_such_check": "it is not there"}), "no_such_check"),
        (Samples(REQUESTS, exempt={"no_such_field": "it is not there"}), "no_such_field"),
        (Samples(REQUESTS, exempt={"pitch": "no"}), "no reason"),
        (Samples(CLIPS), "this recipe takes SpeechRequest"),
    ],
    "stages_stream_as_declared": [
        (tts(sing=broken_sound.AllAtOnce), "'sing' is declared with stream=True"),
        (broken_tts.without("split", tts()), "'split' gave . items for 1"),
    ],
    "idle_is_idle": [(tts(sing=broken_sound.Spinner), "of a CPU busy")],
    "close_ends_threads": [(tts(sing=broken_sound.LeftThread), "left-behind")],
    "outputs_are_valid": [
        (tts(sing=broken_sound.WrongRate), "16000 Hz"),
        (tts(sing=broken_sound.WrongDtype), "float64"),
        (tts(sing=broken_sound.Stereo), "shape"),
        (tts(sing=broken_sound.Loud), "reaches"),
        (tts(sing=broken_sound.NotANumber), "not finite"),
        (tts(sing=broken_sound.Silent), "empty output"),
        (asr(write=broken_asr.Beyond), "in a file of 2.0 s"),
        (asr(write=broken_asr.NoWords), "word timestamps were asked for"),
        (asr(write=broken_asr.TextOnly), "segment timestamps were asked for"),
        (asr(write=broken_asr.TwoTruths), "the text says"),
    ],
    "errors_stay_with_their_request": [
        (tts(sing=broken_sound.DiscardAll), "gave"),
        ((tts(sing=broken_sound.PoisonAll), Samples(REQUESTS, refused=LOW)), "beside refused requests"),
        ((tts(split=broken_tts.Crash), Samples(REQUESTS, refused=SECTION)), "StageFailed"),
        ((tts(split=broken_tts.Whatever), Samples(REQUESTS, refused=SECTION)), "was answered"),
        (asr(cut=broken_asr.AnyFile), "was answered"),
        (asr(cut=broken_asr.RawFile), "not a 4xx error"),
    ],
    "a_request_repeats": [
        (tts(embed=broken_tts.Counter), "a second time"),
        (tts(speak=broken_tts.Unseeded), "and its seed"),
        (tts(embed=broken_tts.Restarted), "after a restart"),
    ],
    "parameters_have_an_effect": [
        (tts(split=broken_tts.NoPitch), "'pitch' has no effect"),
        (tts(split=broken_tts.FixedSeed), "'seed' has no effect"),
        (tts(split=broken_tts.OneVoice), "'voice' has no effect"),
        (
            tts(split=broken_tts.TwoVoicesOfThree, task={"voices": ("low", "high", "higher")}),
            "'high' and 'higher' are the",
        ),
        (tts(split=broken_tts.SlowIsFast), "sounds no longer than"),
        (tts(split=broken_tts.HighPitchFails), "a legal request failed"),
        (tts(speak=broken_tts.Unseeded), "differ by themselves"),
        (asr(recognise=broken_asr.NoShift), "'shift' has no effect"),
    ],
    "parameters_are_bounded": [
        (tts(params=broken_params.Clamps), "'pitch' must be at least 0.5, and -0.5 is accepted"),
        (tts(params=broken_params.Ignores), "ignores fields"),
        (tts(params=broken_params.Unbounded), "'loudness' has no lower or no upper bound"),
        (tts(params=broken_params.Nameless), "the error names ''"),
    ],
    "streamed_equals_whole": [
        (tts(sing=broken_sound.NewPhase), "sample"),
        (tts(sing=broken_sound.Overlap), "samples instead of"),
    ],
    "slow_readers_get_the_same": [(tts(sing=broken_sound.SharedBuffer), "is an array reused")],
    "concurrent_equals_solo": [
        (tts(embed=broken_tts.BatchNorm), "beside"),
        (tts(sing=broken_sound.SharedState), "beside"),
        (asr(recognise=broken_asr.Remembers), "beside"),
    ],
    "messages_cross_processes": [
        (tts(embed=broken_tts.WrongType, speak=broken_tts.SpeakText), "does not cross a process boundary"),
        (tts(speak=broken_tts.InPlace), "read-only"),
    ],
    "cancel_frees_slots": [
        ((tts(split=broken_tts.Stubborn), Samples(REQUESTS[:2], cancel_seconds=0.3)), "there is still work"),
        ((broken_tts.on("deaf", tts()), Samples(REQUESTS[:2], cancel_seconds=0.1)), "there is still work"),
        (broken_tts.on("keeps-pages", tts(), kv_tokens=10_000_000), "KV cache"),
    ],
    "cancel_frees_memory": [
        (tts(sing=broken_sound.Hoard), "toy_tts.py"),
        (tts(sing=broken_sound.HoardNative), "resident memory"),
    ],
    "changed_content_misses_the_cache": [
        (tts(embed=broken_tts.KeyOfText), "after a change of"),
        (tts(embed=broken_tts.KeyOfReferences), "one byte of the audio of reference 0"),
        (tts(embed=broken_tts.KeyWithoutSeed), "after a change of seed"),
        (asr(recognise=broken_asr.KeyOfLength), "the direction of the audio"),
    ],
    "text_is_never_shortened": [
        (tts(split=broken_tts.OneSentence), "the text was shortened"),
        ((tts(split=broken_tts.NoSecondSentence), Samples(REQUESTS, keeps=0.5)), "part 2 of 4"),
    ],
    "long_text_is_never_shortened": [
        (tts(split=broken_tts.FirstCharacters), "the text was shortened"),
        ((tts(split=broken_tts.FirstCharacters), Samples(REQUESTS, keeps=0.2)), "it is not spoken"),
    ],
    "endless_sentences_are_never_shortened": [(tts(split=broken_tts.FirstCharacters), "it is not spoken")],
    "unknown_scripts_are_not_left_out": [(tts(split=broken_tts.AsciiOnly), "left out silently")],
    "audio_is_never_shortened": [
        (asr(cut=broken_asr.FirstThirtySeconds), "is found in"),
        (asr(cut=broken_asr.UntilSilence), "is found in"),
        (asr(cut=broken_asr.LosesOne), "is found in"),
        (asr(recognise=broken_asr.Hallucinates), "where the clips say"),
        (asr(write=broken_asr.WrongDuration), "the transcript says"),
    ],
    "a_cut_text_says_so": [(asr(write=broken_asr.CutsInSilence), "'words' and ends with finish_reason None")],
    "times_are_absolute": [
        (asr(recognise=broken_asr.FromWindow), "has no times"),
        (asr(write=broken_asr.TextOnly), "has no times"),
    ],
    "max_seconds_is_enforced": [
        (asr(cut=broken_asr.Unlimited), "was transcribed with max_seconds=1"),
        (asr(cut=broken_asr.CutAtLimit), "was transcribed with max_seconds=1"),
    ],
    "requests_over_limits_are_refused": [
        (tts(params=broken_params.Clamps), "pitch=-0.5"),
        (tts(params=broken_params.Nameless), "the error names None"),
        (asr(cut=broken_asr.AnyFile), "a file that is no audio must be refused"),
    ],
}
"""Per check: what it is tried on, and what it must say."""

ELSEWHERE = {
    "listing_is_light": "test_kit.py",
    "full_is_busy": "below, faults of core",
    "streamed_equals_whole_over_http": "below, faults of core",
    "streamed_text_equals_whole_over_http": "below, faults of core",
}

CASES = [
    pytest.param(name, subject, says, id=f"{name}-{i}")
    for name, faults in FAULTS.items()
    for i, (subject, says) in enumerate(faults)
]


def kit_for(subject: Any) -> Kit:
    """For a recipe, samples for the toy voice, or a pair of both."""
    subjects = subject if isinstance(subject, tuple) else (subject,)
    samples = next((s for s in subjects if isinstance(s, Samples)), None)
    recipe = next((s for s in subjects if not isinstance(s, Samples)), tts())
    plugins = Plugins()
    plugins.add("broken_tts", lambda: broken_tts)
    return Kit(recipe, plugins, samples=samples, timeout=20)


@pytest.fixture(autouse=True)
def end_threads() -> Iterator[None]:
    broken_sound.LeftThread.ends.clear()
    yield
    broken_sound.LeftThread.ends.set()


@pytest.mark.parametrize(("name", "subject", "says"), CASES)
def test_the_check_catches_the_fault(name: str, subject: Any, says: str) -> None:
    with kit_for(subject) as kit, pytest.raises(ConformanceFailure, match=says):
        BY_NAME[name](kit)


def test_every_check_is_proved() -> None:
    assert {*FAULTS, *ELSEWHERE} == set(BY_NAME)


@pytest.fixture(scope="module", params=["tts", "asr"])
def good(request: pytest.FixtureRequest) -> Iterator[Kit]:
    with kit_for({"tts": tts, "asr": asr}[request.param]()) as kit:
        yield kit


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_a_recipe_that_keeps_its_promises_passes(good: Kit, check: Check) -> None:
    if check.name == "listing_is_light":
        with pytest.raises(NotApplicable, match="handed over as an object"):
            check(good)
    elif check.task not in (None, good.recipe.task.kind):
        with pytest.raises(NotApplicable, match=f"for {check.task} recipes only"):
            check(good)
    else:
        check(good)


# Faults that only core could have.


def test_a_recipe_that_is_never_full(monkeypatch: pytest.MonkeyPatch) -> None:
    submit = Pipeline.submit

    def unlimited(self: Pipeline, request: Any, request_id: str | None = None) -> Any:
        self.limits = self.limits.model_copy(update={"max_requests": 1000})
        return submit(self, request, request_id)

    monkeypatch.setattr(Pipeline, "submit", unlimited)
    with kit_for(tts()) as kit, pytest.raises(ConformanceFailure, match="a third request was taken"):
        BY_NAME["full_is_busy"](kit)


def test_a_recipe_that_does_not_say_when_to_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omni.pipeline.Busy", lambda message, retry_after: Busy(message))
    with kit_for(tts()) as kit, pytest.raises(ConformanceFailure, match="without saying when to come back"):
        BY_NAME["full_is_busy"](kit)


@pytest.mark.parametrize(("method", "stream"), [("finish", True), ("whole", False)])
def test_a_server_that_loses_the_end_of_the_sound(monkeypatch: pytest.MonkeyPatch, method: str, stream: bool) -> None:
    write, whole = AudioOutput.write, AudioOutput.whole
    if stream:
        monkeypatch.setattr(AudioOutput, "write", lambda self, samples: write(self, samples[:-2]))
    else:
        monkeypatch.setattr(AudioOutput, "whole", lambda fmt, samples, *a, **k: whole(fmt, samples[:-2], *a, **k))
    with kit_for(tts()) as kit, pytest.raises(ConformanceFailure, match=f"stream={stream} has"):
        BY_NAME["streamed_equals_whole_over_http"](kit)


def test_a_server_that_loses_a_piece_of_text(monkeypatch: pytest.MonkeyPatch) -> None:
    event = transcriptions.event

    def shorter(content: dict[str, Any]) -> bytes:
        if content["type"].endswith("delta"):
            content["delta"] = content["delta"][:-1]
        return event(content)

    monkeypatch.setattr(transcriptions, "event", shorter)
    with kit_for(asr()) as kit, pytest.raises(ConformanceFailure, match="in deltas"):
        BY_NAME["streamed_text_equals_whole_over_http"](kit)


# What the kit does when its samples prove nothing.


@pytest.mark.parametrize(
    ("samples", "says"),
    [
        (Samples(REQUESTS[:1]), "fewer than two"),
        (Samples((REQUESTS[0], REQUESTS[0])), "give the same output"),
    ],
)
def test_samples_that_prove_nothing_are_refused(samples: Samples, says: str) -> None:
    recipe = tts(task={"seed": False})
    with kit_for((recipe, samples)) as kit, pytest.raises(ConformanceFailure, match=says):
        BY_NAME["concurrent_equals_solo"](kit)


def test_built_in_noise_is_no_speech_and_the_kit_says_so() -> None:
    with kit_for(asr(samples=None)) as kit, pytest.raises(NotApplicable, match="names no samples with speech"):
        BY_NAME["audio_is_never_shortened"](kit)


def test_silence_is_an_empty_sample() -> None:
    silence = TranscriptionRequest(audio=wav(np.zeros(8000, np.float32), 8000))
    with kit_for((asr(), Samples((silence, CLIPS[0])))) as kit, pytest.raises(ConformanceFailure, match="empty output"):
        BY_NAME["concurrent_equals_solo"](kit)
