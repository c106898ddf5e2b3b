"""The bench scripts run; what they measure here means nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[3] / "bench"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "arguments", "figures"),
    [
        (
            "qwen3_asr_cpu.py",
            ("--layers", "2", "--hidden", "256", "--steps", "4"),
            {"batch1", "floor", "batch16", "products16", "prompt", "again_skipped", "encoder", "features"},
        ),
        (
            "cuda_qwen3_asr.py",
            ("--device", "cpu", "--tiny"),
            {"recipe_8_clips_per_s", "first_token_ms", "encoder_8_ms", "prefill_8_ms", "batch8_ms_per_step"},
        ),
    ],
)
def test_bench_script_runs(tmp_path, script, arguments, figures) -> None:
    out = tmp_path / "figures.json"
    subprocess.run(
        [sys.executable, str(BENCH / script), *arguments, "--json", str(out)],
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        timeout=100,
    )
    found = json.loads(out.read_text())
    assert figures <= found.keys()
    assert all(value >= 0 for value in found.values())
