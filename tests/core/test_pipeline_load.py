"""Bringing a pipeline up, and everything that can go wrong on the way."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from pipes import fresh, pipeline
from typing import Any

import pytest
import toy_engine
import toy_stages
import toy_tts
from harness import Gate, run, stage_threads, threads_as_before, until
from toy_stages import CHAIN, EVENTS

from omni import ConfigError, MissingDependency, Weights
from omni.config import RecipeConfig
from omni.pipeline import Pipeline
from omni.plugins import Plugins


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    with fresh():
        yield


@pytest.mark.parametrize(
    ("cls", "kind", "words"),
    [
        ("Unloadable", ConfigError, "the disk is full"),
        ("Unimportable", MissingDependency, "pip install 'omni-recipes[rare]'"),
        ("Unmakeable", ConfigError, "cannot be made"),
    ],
)
def test_a_stage_that_does_not_load_is_named_and_the_others_are_closed(
    cls: str, kind: type[ConfigError], words: str
) -> None:
    async def test() -> None:
        recipe = toy_stages.recipe(f"split:{cls}", *CHAIN[1:], extra="rare")
        with threads_as_before():
            with pytest.raises(kind) as caught:
                await Pipeline.load(RecipeConfig(recipe), Plugins.load([]))
            assert type(caught.value) is kind
        assert "'split'" in caught.value.message
        assert words in caught.value.message
        closed = {stage for what, stage in EVENTS if what == "close"}
        assert closed == {"encode", "speak", "join"} | ({"split"} if cls != "Unmakeable" else set())

    run(test)


def test_an_engine_that_does_not_start_is_closed_and_the_error_names_its_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[Any] = []
    monkeypatch.setattr(toy_engine.ToyEngine, "close", lambda engine: closed.append(engine))

    async def test() -> None:
        plugins = Plugins.load([])
        plugins.add("toy", lambda: toy_tts)
        config = RecipeConfig(toy_tts.recipe())
        config.set("speak.toy.max_running", 2000, "test")
        words = "stage 'speak' of recipe 'toy-tts': max_running: at most 1024"
        with threads_as_before(), pytest.raises(ConfigError, match=words):
            await Pipeline.load(config, plugins)
        assert len(closed) == 1

    run(test)


def test_a_load_that_is_cancelled_does_not_wait_and_closes_what_comes_up_later() -> None:
    gate = Gate()

    class Slow(toy_stages.Split):
        def load(self) -> None:
            gate.passed()
            super().load()

    async def test() -> None:
        before = stage_threads()
        with threads_as_before():
            config = RecipeConfig(toy_stages.recipe("split:Slow", *CHAIN[1:]))
            loading = asyncio.create_task(Pipeline.load(config, Plugins.load([])))
            await gate.reached()
            loading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await loading
            assert ("close", "split") not in EVENTS
            gate.open()
            closed = {("close", name) for name in ("split", "encode", "speak", "join")}
            await until(lambda: closed <= set(EVENTS) and not stage_threads() - before)
            assert len(EVENTS) == 2 * len(closed)

    toy_stages.Slow = Slow  # type: ignore[attr-defined]
    try:
        run(test)
    finally:
        del toy_stages.Slow  # type: ignore[attr-defined]


@pytest.mark.parametrize(("setting", "known"), [("executor", "inprocess"), ("transport", "codec, inproc")])
def test_an_unknown_executor_or_transport_is_an_error_that_lists_what_there_is(setting: str, known: str) -> None:
    async def test() -> None:
        with pytest.raises(ConfigError, match=f"no {setting} 'pigeon'; there are: {known}"):
            async with pipeline(**{setting: "pigeon"}):
                pass

    run(test)


def test_limits_out_of_range_are_an_error_before_anything_is_loaded() -> None:
    async def test() -> None:
        with pytest.raises(ConfigError, match="max_requests"):
            async with pipeline(limits__max_requests=0):
                pass
        assert EVENTS == []

    run(test)


def test_progress_tells_what_is_loading() -> None:
    async def test() -> None:
        told: list[tuple[str, str, str]] = []
        pipe = await Pipeline.load(
            RecipeConfig(toy_stages.recipe(*CHAIN)), Plugins.load([]), lambda *report: told.append(report)
        )
        await pipe.close()
        assert told[:2] == [("toy", "weights", "locating"), ("toy", "weights", "none needed")]
        for stage in ("split", "encode", "speak", "join"):
            assert told.index(("toy", stage, "loading")) < told.index(("toy", stage, "ready"))

    run(test)


def test_a_stage_with_weights_of_its_own_gets_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}
    monkeypatch.setattr(toy_stages.Recorded, "load", lambda stage: seen.update({stage.context.stage: stage.context}))
    for name in ("main", "own"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)

    async def test() -> None:
        recipe = toy_stages.recipe(*CHAIN, weights=Weights("owner/main"))
        stages = tuple(
            spec.model_copy(update={"weights": Weights("owner/own")}) if spec.name == "speak" else spec
            for spec in recipe.stages
        )
        config = RecipeConfig(recipe.model_copy(update={"stages": stages}))
        config.set("weights", str(tmp_path / "main"), "test")
        config.set("speak.weights", str(tmp_path / "own"), "test")
        await (await Pipeline.load(config, Plugins.load([]))).close()
        assert {name: context.weights.name for name, context in seen.items()} == {
            "split": "main",
            "encode": "main",
            "speak": "own",
            "join": "main",
        }
        assert seen["speak"].revision != seen["join"].revision == seen["split"].revision

    run(test)
