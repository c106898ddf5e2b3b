"""The conformance kit: does a recipe keep the promises that core makes in its name?

On the command line ``pytest --pyargs omni.testing --recipe NAME``; in a plugin's own tests::

    from omni.testing import conformance

    TestMyRecipe = conformance("my-recipe")

Importing this package imports no pytest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from omni.testing.recordings import RECORDINGS, noisy_recording, recording
from omni.testing.samples import SENTENCES, Effect, Samples, tone, wav

if TYPE_CHECKING:
    from collections.abc import Iterable

    from omni.plugins import Plugins
    from omni.recipe import Recipe


def conformance(
    recipe: str | Recipe,
    *,
    plugins: Plugins | None = None,
    sets: Iterable[str] = (),
    weights: str | None = None,
    samples: Samples | None = None,
    timeout: float = 120.0,
) -> type[Any]:
    """A test class with one test per check; bind it to a name that starts with ``Test``.

    ``recipe`` is the name of an installed recipe or the recipe itself; ``sets`` and ``weights`` as for ``omni
    launch``; ``samples`` in place of the recipe's; ``timeout``: seconds that one request may take.
    """
    from omni.testing.suite import suite

    return suite(recipe, plugins=plugins, sets=tuple(sets), weights=weights, samples=samples, timeout=timeout)


__all__ = [
    "RECORDINGS",
    "SENTENCES",
    "Effect",
    "Samples",
    "conformance",
    "noisy_recording",
    "recording",
    "tone",
    "wav",
]
