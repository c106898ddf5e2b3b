"""Both recipes keep the promises that core makes in their name."""

from __future__ import annotations

import pytest
from fish_serving import CKPT

from omni.testing import conformance

CODEC = ("reference", "vocoder")


@pytest.mark.xdist_group("fish_conformance")
class TestCheckpoint(conformance("fish-s2-pro", weights=str(CKPT))):
    pass


@pytest.mark.xdist_group("fish_conformance_random")
class TestRandom(conformance("fish-s2-pro-random", sets=[f"{stage}.random_width=0.0625" for stage in CODEC])):
    pass
