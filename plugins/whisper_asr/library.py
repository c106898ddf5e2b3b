"""The one door to faster-whisper, so that its traps are dealt with once."""

from __future__ import annotations

import logging
import os
from typing import Any

from omni import MissingDependency


def faster_whisper() -> Any:
    """The package with its ``transcribe`` and ``vad`` modules.

    Raises:
        MissingDependency: it is not installed.
    """
    # Its speech detector runs on onnxruntime, which without this writes a device id below HOME.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    try:
        import faster_whisper.transcribe
        import faster_whisper.vad
    except ImportError as error:
        raise MissingDependency(f"{error}: pip install faster-whisper==1.2.1") from error
    # It would write two lines for every span.
    logging.getLogger("faster_whisper").setLevel(logging.WARNING)
    return faster_whisper
