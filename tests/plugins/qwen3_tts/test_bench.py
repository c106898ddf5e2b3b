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
            "qwen3_tts_cpu.py",
            ("--size", "tiny", "--width", "0.03125", "--frames", "4"),
            {"batch1", "floor", "batch16", "products16", "skipped_warm", "codec_by_1"},
        ),
        (
            "cuda_qwen3_tts.py",
            ("--device", "cpu", "--tiny"),
            {
                "recipe_1_first_ms",
                "recipe_4_rtf",
                "first_1_ms",
                "first_16_ms",
                "batch1_rtf",
                "voice_known_ms",
                "codec_64x1_ms",
                "floor_ms_64",
            },
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
