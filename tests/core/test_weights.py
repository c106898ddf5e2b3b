"""From a recipe's weights to a folder: every place they can be, and every way they can be missing."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import errors as hub

from omni import MissingDependency, Recipe, Speech, StageSpec, Weights, WeightsError
from omni.weights import digest_of, locate


def recipe(weights: Weights | None = None) -> Recipe:
    return Recipe(
        name="voice",
        summary="-",
        license="-",
        task=Speech(sample_rate=8000),
        stages=(StageSpec("a", "m:C"),),
        weights=weights,
        extra="voice",
    )


HUB = Weights("owner/name", revision="abc", allow=("*.json",), access="Ask the owner.")


class Hub:
    """In place of the Hub: keeps what it was asked for, gives a folder or an error."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.asked: list[dict[str, Any]] = []

    def snapshot_download(self, repo: str, **asked: Any) -> str:
        self.asked.append({"repo": repo, **asked})
        if isinstance(self.answer, Exception):
            raise self.answer
        return str(self.answer)


def install(monkeypatch: pytest.MonkeyPatch, answer: Any) -> Hub:
    fake = Hub(answer)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", fake.snapshot_download)
    return fake


def test_a_recipe_may_have_none() -> None:
    assert locate(recipe()) is None


def test_a_local_folder_wins_and_is_known_by_its_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = install(monkeypatch, AssertionError("the Hub was asked"))
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "model.bin").write_bytes(b"123")
    found = locate(recipe(HUB), str(tmp_path))
    assert found is not None
    assert found.path == tmp_path.resolve()
    assert found.revision == digest_of(tmp_path)
    assert fake.asked == []
    monkeypatch.setenv("HOME", str(tmp_path))
    home = locate(recipe(), "~/sub")
    assert home is not None
    assert home.path == (tmp_path / "sub").resolve()


def test_the_digest_changes_with_every_change(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"123")
    digests = [digest_of(tmp_path)]
    assert digest_of(tmp_path) == digests[0]
    file.write_bytes(b"1234")
    digests.append(digest_of(tmp_path))
    os.utime(file, ns=(1, 1))
    digests.append(digest_of(tmp_path))
    (tmp_path / "b").write_bytes(b"")
    digests.append(digest_of(tmp_path))
    file.rename(tmp_path / "c")
    digests.append(digest_of(tmp_path))
    assert len(set(digests)) == len(digests)


@pytest.mark.parametrize("source", ["./missing", "/missing/folder", "missing", "a/b/c", "~/missing", "-/x", "a/b@"])
def test_a_folder_that_does_not_exist(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, AssertionError("the Hub was asked"))
    with pytest.raises(WeightsError, match="there is no such folder, and it is no Hub id") as caught:
        locate(recipe(HUB), source)
    assert repr(source) in caught.value.message


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(b"")
    with pytest.raises(WeightsError, match="this is a file; name the folder that holds it"):
        locate(recipe(HUB), str(tmp_path / "model.bin"))


def test_the_hub_is_asked_for_what_the_recipe_declares(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "snapshots" / "0123abcd"
    fake = install(monkeypatch, folder)
    found = locate(recipe(HUB))
    assert found is not None
    assert (found.path, found.revision) == (folder, "0123abcd")
    locate(recipe(HUB), download=False)
    locate(recipe(HUB), "other/weights@v2")
    locate(recipe(), "other/weights")
    expected = {"repo": "owner/name", "revision": "abc", "allow_patterns": ["*.json"], "local_files_only": False}
    assert fake.asked == [
        expected,
        {**expected, "local_files_only": True},
        {**expected, "repo": "other/weights", "revision": "v2"},
        {**expected, "repo": "other/weights", "revision": None, "allow_patterns": None},
    ]


def answer(status: int) -> Any:
    return SimpleNamespace(headers={}, request=None, status_code=status)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            hub.GatedRepoError("403", response=answer(403)),
            ["owner/name@abc is gated", "https://huggingface.co/owner/name", "HF_TOKEN", "Ask the owner."],
        ),
        (
            hub.RepositoryNotFoundError("404", response=answer(404)),
            ["no Hub repository owner/name", "may not see it", "HF_TOKEN", "Ask the owner."],
        ),
        (hub.RevisionNotFoundError("404", response=answer(404)), ["owner/name has no revision 'abc'"]),
        (hub.HFValidationError("bad name"), ["'owner/name' is no Hub id: bad name"]),
        (hub.LocalEntryNotFoundError("not in the cache\nmore"), ["(not in the cache)", "omni pull voice", "--weights"]),
        (hub.OfflineModeIsEnabled("offline mode"), ["(offline mode)", "omni pull voice", "Ask the owner."]),
        (hub.HfHubHTTPError("502 Bad Gateway", response=answer(502)), ["(502 Bad Gateway)", "omni pull voice"]),
        (OSError("No space left on device"), ["(No space left on device)"]),
        (RuntimeError(""), ["(RuntimeError)", "omni pull voice"]),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_errors_of_the_hub_say_what_to_do(error: Exception, words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, error)
    with pytest.raises(WeightsError) as caught:
        locate(recipe(HUB))
    for word in words:
        assert word in caught.value.message
    assert "\n" not in caught.value.message
    assert caught.value.__cause__ is error


def test_offline_with_an_empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(WeightsError, match=r"are not on this machine .*omni pull voice"):
        locate(recipe(HUB), download=False)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType("weights_package_of_the_test")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "model.bin").write_bytes(b"1")
    module.__dict__["folder"] = lambda: tmp_path / "data"
    module.__dict__["text"] = lambda: str(tmp_path / "data")
    module.__dict__["nowhere"] = lambda: tmp_path / "nowhere"
    module.__dict__["broken"] = lambda: 1 / 0
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


def packaged(function: str, **fields: Any) -> Recipe:
    return recipe(Weights(package=f"weights_package_of_the_test:{function}", **fields))


@pytest.mark.parametrize("function", ["folder", "text"])
def test_weights_of_an_installed_package(function: str, package: ModuleType, tmp_path: Path) -> None:
    found = locate(packaged(function))
    assert found is not None
    assert found.path == tmp_path / "data"
    assert found.revision == digest_of(tmp_path / "data")


@pytest.mark.parametrize(
    ("function", "words"), [("nowhere", "which is no folder"), ("broken", "failed: ZeroDivisionError")]
)
def test_a_package_without_its_weights(function: str, words: str, package: ModuleType) -> None:
    with pytest.raises(WeightsError, match=words) as caught:
        locate(packaged(function))
    assert "weights of recipe 'voice'" in caught.value.message


def test_a_package_that_is_not_installed() -> None:
    declared = Weights("owner/name", package="nowhere_to_be_found:folder", pip="heavy-weights==1.0")
    with pytest.raises(MissingDependency) as caught:
        locate(recipe(declared))
    for word in ("'nowhere_to_be_found'", "pip install heavy-weights==1.0", "--weights DIR", "owner/name"):
        assert word in caught.value.message
    with pytest.raises(MissingDependency, match=r"pip install 'omni-recipes\[voice\]'"):
        locate(recipe(Weights(package="nowhere_to_be_found:folder")))


def test_other_weights_spare_the_package(tmp_path: Path) -> None:
    found = locate(recipe(Weights(package="nowhere_to_be_found:folder")), str(tmp_path))
    assert found is not None
    assert found.path == tmp_path.resolve()


def with_own(**own: Weights) -> Recipe:
    stages = (StageSpec("a", "m:C"), *(StageSpec(name, "m:C", after="a", weights=w) for name, w in own.items()))
    return recipe(HUB).model_copy(update={"stages": stages})


def test_a_stage_may_have_weights_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = install(monkeypatch, tmp_path)
    known = with_own(b=Weights("other/one", allow=("*.bin",)))
    assert known.all_weights() == {None: HUB, "b": Weights("other/one", allow=("*.bin",))}
    locate(known, stage="b")
    locate(known, "owner/two@v2", stage="b")
    asked = {"revision": None, "allow_patterns": ["*.bin"], "local_files_only": False}
    assert fake.asked == [{"repo": "other/one", **asked}, {"repo": "owner/two", **asked, "revision": "v2"}]


def test_errors_name_the_stage_whose_weights_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, OSError("no route"))
    with pytest.raises(WeightsError) as caught:
        locate(with_own(b=Weights("other/one")), stage="b")
    for word in ("stage 'b' of recipe 'voice'", "other/one", "omni pull voice", "--set b.weights=DIR"):
        assert word in caught.value.message
