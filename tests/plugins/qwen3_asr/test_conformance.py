"""The conformance kit on the tiny checkpoints, without and with the aligner."""

from __future__ import annotations

from pathlib import Path

import pytest

from omni.testing import conformance
from qwen3_asr.samples import noise

DATA = Path(__file__).parents[2] / "data" / "qwen3_asr"

TestTiny = pytest.mark.slow(conformance("qwen3-asr-0.6b", weights=str(DATA / "asr"), samples=noise()))

TestTinyWithTimes = pytest.mark.slow(
    conformance(
        "qwen3-asr-0.6b-timestamps",
        weights=str(DATA / "asr"),
        sets=(f"aligner.weights={DATA / 'forced_aligner'}",),
        samples=noise(times=True),
    )
)
