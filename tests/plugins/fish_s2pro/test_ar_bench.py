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
            "fish_ar.py",
            ("--layers", "2", "--fast-layers", "1", "--dim", "256", "--frames", "4"),
            {"batch1", "floor", "batch16", "products16", "capacity32768", "skipped_warm"},
        ),
        (
            "cuda_fish.py",
            ("--device", "cpu", "--tiny"),
            {"first_400_ms", "batch1_rtf", "batch64_frames_per_s", "eager8_rtf", "codec_64x1_ms", "floor_ms_64"},
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
