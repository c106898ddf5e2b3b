"""Listing recipes must stay light: the codecs load when audio is first touched."""

from __future__ import annotations

import subprocess
import sys


def test_import_loads_no_codec():
    code = "import omni.audio, sys; print([m for m in ('av', 'soxr', 'torch', 'scipy') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
