"""A recipe's task may follow from the weights at hand."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest
import toy_stages
from harness import run

from omni.config import RecipeConfig
from omni.errors import ConfigError
from omni.loading import fit_task
from omni.pipeline import Pipeline
from omni.plugins import Plugins
from omni.recipe import Recipe, Speech, StageSpec, Transcription


@pytest.fixture
def recipe(monkeypatch: pytest.MonkeyPatch) -> Recipe:
    """Its voices are the names of the files in the folder."""
    module = ModuleType("weights_with_voices")

    def task(recipe: Recipe, folder: Path | None) -> object:
        if folder is None:
            return Transcription()
        return recipe.task.model_copy(update={"voices": tuple(sorted(path.name for path in folder.iterdir()))})

    module.task = task  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "weights_with_voices", module)
    return Recipe(
        name="folder-voices",
        summary="s",
        license="l",
        task=Speech(sample_rate=8000, voices=("declared",), max_characters=7),
        task_of="weights_with_voices:task",
        stages=(StageSpec("one", "nowhere:One"),),
    )


def test_the_weights_have_the_last_word(recipe: Recipe, tmp_path: Path) -> None:
    for name in ("ada", "bob"):
        (tmp_path / name).touch()
    config = RecipeConfig(recipe)
    config.set("one.width", 3, "--set")
    found = fit_task(config, tmp_path)
    assert isinstance(found.recipe.task, Speech)
    assert found.recipe.task.voices == ("ada", "bob")
    assert found.recipe.task.max_characters == 7
    assert found.options("one") == {"width": 3}
    assert isinstance(recipe.task, Speech)
    assert [voice.id for voice in recipe.task.voices] == ["declared"]


def test_another_kind_of_task_is_refused(recipe: Recipe) -> None:
    with pytest.raises(ConfigError, match="gave Transcription, not Speech"):
        fit_task(RecipeConfig(recipe), None)


def test_a_function_that_does_not_exist(recipe: Recipe) -> None:
    config = RecipeConfig(recipe.model_copy(update={"task_of": "weights_with_voices:other"}))
    with pytest.raises(ConfigError, match="task_of of recipe 'folder-voices'"):
        fit_task(config, None)


def test_without_one_the_recipe_is_as_declared(recipe: Recipe) -> None:
    config = RecipeConfig(recipe.model_copy(update={"task_of": None}))
    assert fit_task(config, None) is config


def test_a_pipeline_has_the_task_of_its_weights(recipe: Recipe, tmp_path: Path) -> None:
    (tmp_path / "ada").touch()

    async def test() -> None:
        config = RecipeConfig(toy_stages.recipe("only:Nothing").model_copy(update={"task_of": recipe.task_of}))
        config.set("weights", str(tmp_path), "--weights")
        pipeline = await Pipeline.load(config, Plugins.load([]))
        await pipeline.close()
        assert isinstance(pipeline.recipe.task, Speech)
        assert pipeline.recipe.task.voices == ("ada",)

    run(test)
