"""Several recipes behind one door."""

from __future__ import annotations

from typing import Any

import pytest
import toy_asr
import toy_stages
from harness import run, threads_as_before
from toy_stages import CHAIN, EVENTS

from omni import BadRequest, ConfigError, SpeechRequest, TranscriptionRequest
from omni.config import RecipeConfig
from omni.errors import ModelNotFound
from omni.plugins import Plugins
from omni.service import Service


@pytest.fixture(autouse=True)
def clean() -> None:
    EVENTS.clear()


def voice(name: str, *aliases: str) -> RecipeConfig:
    return RecipeConfig(toy_stages.recipe(*CHAIN, name=name, aliases=aliases))


def ears() -> RecipeConfig:
    return RecipeConfig(toy_asr.recipe())


async def launch(*configs: RecipeConfig, **fields: Any) -> Service:
    return await Service.launch(configs, Plugins.load([]), **fields)


def test_models_are_found_by_name_alias_and_task() -> None:
    async def test() -> None:
        service = await launch(
            voice("one", "uno"), voice("two"), ears(), aliases={"tts-1": "speech", "whisper-1": "transcription"}
        )
        one, two = service.pipelines["one"], service.pipelines["two"]
        for model in ("one", "uno", "tts-1", None):
            assert service.find(model, "speech") is one
        assert service.find("two", "speech") is two
        for model in ("toy-asr", "whisper-1", None):
            assert service.find(model, "transcription").recipe.name == "toy-asr"
        assert list(service.names())[:4] == ["one", "uno", "two", "toy-asr"]
        with pytest.raises(ModelNotFound, match="'three' is not served here; served are: one, two, toy-asr") as unknown:
            service.find("three", "speech")
        assert (unknown.value.status, unknown.value.param) == (404, "model")
        with pytest.raises(BadRequest, match="'one' does speech, not transcription") as wrong:
            service.find("one", "transcription")
        assert wrong.value.param == "model"
        await service.close()

    run(test)


def test_aliases_of_a_task_that_is_not_served_do_not_exist_and_own_names_win() -> None:
    async def test() -> None:
        service = await launch(
            voice("one"), voice("two", "tts-1"), aliases={"tts-1": "speech", "whisper-1": "transcription"}
        )
        assert service.find("tts-1", "speech").recipe.name == "two"
        with pytest.raises(ModelNotFound):
            service.find("whisper-1", "transcription")
        with pytest.raises(ModelNotFound, match="no served model does transcription"):
            service.find(None, "transcription")
        await service.close()

    run(test)


def test_two_recipes_of_one_name_are_refused_and_closed() -> None:
    async def test() -> None:
        with threads_as_before(), pytest.raises(ConfigError, match="two served recipes are called 'same'"):
            await launch(voice("one", "same"), voice("two", "same"))
        assert len([stage for what, stage in EVENTS if what == "close"]) == 2 * len(CHAIN)

    run(test)


def test_when_one_recipe_fails_those_already_up_are_closed() -> None:
    async def test() -> None:
        broken = RecipeConfig(toy_stages.recipe("split:Unloadable", *CHAIN[1:], name="broken"))
        with threads_as_before(), pytest.raises(ConfigError, match="the disk is full"):
            await launch(voice("one"), broken)

    run(test)


def test_drain_and_readiness_are_those_of_all() -> None:
    async def test() -> None:
        with threads_as_before():
            service = await launch(voice("one"), voice("two"))
            assert service.ready
            stream = service.find("two", "speech").submit(SpeechRequest(text="100000 x long"))
            await anext(stream)
            assert await service.drain(0.01) == 1
            assert not service.ready
            await service.close()

    run(test)


class Echo:
    """Says what was asked for, beep by beep; a turn for every two files that are fed."""

    sample_rate = toy_asr.RATE

    def __init__(self, options: Any, *, language: str | None = None) -> None:
        assert options == toy_asr.Cut.Options()
        self.text, self.language = "", language
        self.fed: list[Any] = []

    def feed(self, samples: Any) -> None:
        self.fed.append(samples)

    def turn(self) -> TranscriptionRequest | None:
        return self.finish() if len(self.fed) > 1 else None

    def finish(self) -> TranscriptionRequest | None:
        return TranscriptionRequest(audio=self.fed.pop(0)) if self.fed else None

    def answer(self, written: str) -> None:
        self.text += written + "."


def test_a_live_transcript_moves_its_turns_through_the_pipeline() -> None:
    async def test() -> None:
        recipe = toy_asr.recipe(task={"live": f"{__name__}:Echo"})
        service = await launch(RecipeConfig(recipe), voice("one"))
        live = service.live("toy-asr", language="en")
        assert (live.sample_rate, live.language, live.text, live.finish_reason) == (toy_asr.RATE, "en", "", None)
        assert not await live.feed(toy_asr.beeps("first"))
        assert live.text == ""
        assert await live.feed(toy_asr.beeps("second"))
        assert live.text == "first."
        await live.finish()
        await live.finish()
        assert (live.text, live.finish_reason) == ("first.second.", "stop")
        assert service.pipelines["toy-asr"].stats().completed_total == 2
        with pytest.raises(BadRequest, match="'one' does speech"):
            service.live("one")
        await service.close()

    run(test)


def test_a_model_without_live_transcripts_says_so() -> None:
    async def test() -> None:
        service = await launch(ears())
        with pytest.raises(BadRequest, match="'toy-asr' gives no live transcripts") as caught:
            service.live()
        assert caught.value.param == "model"
        await service.close()

    run(test)
