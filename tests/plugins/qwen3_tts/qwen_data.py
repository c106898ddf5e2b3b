"""The tiny checkpoints.

The three kinds of model share their talker and codec, so one of them is in the repository whole and the others are made
from it and their own ``config.json``.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path

from safetensors.torch import load_file, save_file

DATA = Path(__file__).parents[2] / "data" / "qwen3_tts"


@cache
def folders() -> dict[str, Path]:
    """A folder in the Hub's layout for each kind of model."""
    base = DATA / "base"
    found = {"base": base}
    talker = {
        name: tensor
        for name, tensor in load_file(base / "model.safetensors").items()
        if not name.startswith("speaker_encoder.")
    }
    root = Path(tempfile.mkdtemp(prefix="qwen3_tts"))
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    for kind in ("custom_voice", "voice_design"):
        folder = root / kind
        shutil.copytree(base, folder)
        shutil.copy(DATA / kind / "config.json", folder)
        save_file(talker, folder / "model.safetensors")
        found[kind] = folder
    return found
