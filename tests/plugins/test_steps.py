"""A decode step never looks at its data from the host: so it can be captured in a CUDA graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fish_s2pro.source import DualARSource
from omni.engines.base import ModelSource
from omni.engines.torch import LayerStack, TorchARModel, parse_options
from omni.engines.torch.attention import SdpaAttention
from omni.engines.torch.runner import Runner
from qwen3_asr.source import AsrSource
from qwen3_tts.source import TalkerSource

WHERE = {"device": "cpu", "dtype": "bfloat16"}
SOURCES: dict[str, ModelSource] = {
    "fish": DualARSource(**WHERE, random="tiny"),
    "talker": TalkerSource(**WHERE, size="tiny"),
    "recogniser": AsrSource(**WHERE, random="tiny"),
}


class Watch(TorchDispatchMode):
    """Counts what a CUDA graph cannot hold: looks at data from the host, and shapes that depend on data."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()

    def __torch_dispatch__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(call)
        words = ("local_scalar", "nonzero", "masked_select", "unique", "lift_fresh", "equal.default", "_assert")
        tensors = [t for a in args if isinstance(a, (list, tuple)) for t in a if isinstance(t, torch.Tensor)]
        if any(word in name for word in words) or ("index" in name and any(t.dtype == torch.bool for t in tensors)):
            self.seen[name] += 1
        return call(*args, **(kwargs or {}))


def watched(call: Callable[[], Any]) -> dict[str, int]:
    with torch.inference_mode(False), torch.no_grad():
        call()  # what is made once, is made now
        with Watch() as watch:
            call()
    return dict(watch.seen)


def runner(model: TorchARModel) -> Runner:
    attention = SdpaAttention(model.kv, 64, 16, device=model.device, dtype=model.dtype)
    return Runner(model, attention, parse_options({"kv_tokens": 1024}), 64, None)


def test_the_watch_sees_what_a_graph_cannot_hold() -> None:
    x = torch.arange(3)
    for forbidden in (lambda: x.sum().item(), lambda: x[x > 1], lambda: bool((x > 1).any()), lambda: x.nonzero()):
        assert watched(forbidden)


@pytest.mark.parametrize("candidates", [0, 1, 64])
@pytest.mark.parametrize("family", SOURCES)
def test_a_step_can_be_captured(family: str, candidates: int) -> None:
    made = runner(SOURCES[family].build(LayerStack, device=torch.device("cpu")))
    rows = torch.tensor([0, 1, 2])
    assert not watched(lambda: made._step(rows, ((0, 3, 4),), candidates))
