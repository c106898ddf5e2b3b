"""The conformance kit on the embedded voice."""

import pytest

from omni.testing import conformance

pytest.importorskip("hibari")

TestHibari = pytest.mark.slow(conformance("hibari-tts"))
