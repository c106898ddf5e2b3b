"""SGLang as an AR engine, in processes of its own. Importing this imports neither SGLang nor torch."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from omni.engines.base import ModelSource

if TYPE_CHECKING:
    from omni.engines.sglang.engine import SGLangEngine

SUPPORTED = "0.5.23"
"""SGLang has no stable interface for models, so omni supports the one release that it is tested with."""

PIP_LINE = "pip install 'omni-recipes[sglang]'"


class SGLangFactory:
    """The engine's factory; see :class:`omni.engines.base.EngineFactory`."""

    takes_source = True

    def __call__(self, model: ModelSource, options: Mapping[str, Any]) -> SGLangEngine:
        """Raises:
        ConfigError: an option is out of range or not to be set.
        """
        from omni.engines.sglang.engine import SGLangEngine

        return SGLangEngine(model, options)

    def probe(self) -> str | None:
        """Why it cannot run here, if it cannot."""
        try:
            found = version("sglang")
        except PackageNotFoundError:
            return f"SGLang is not installed ({PIP_LINE})"
        if found != SUPPORTED:
            return f"SGLang {found} is installed, omni supports {SUPPORTED} ({PIP_LINE})"
        return None

    def preference(self, options: Any) -> int:
        """Above the embedded engine for a stage that computes on CUDA; elsewhere only when it is asked for."""
        device = str(getattr(options, "device", "auto"))
        if device == "auto" and find_spec("torch") is not None:
            import torch

            return 10 if torch.cuda.is_available() else -10
        return 10 if device.startswith("cuda") else -10


create_engine = SGLangFactory()
