"""The checks, in the order in which they run."""

from __future__ import annotations

from omni.testing.checks.base import Check
from omni.testing.checks.cache import CACHE
from omni.testing.checks.cancel import CANCEL
from omni.testing.checks.complete import COMPLETE
from omni.testing.checks.hygiene import HYGIENE
from omni.testing.checks.limits import LIMITS
from omni.testing.checks.outputs import OUTPUTS
from omni.testing.checks.parameters import PARAMETERS
from omni.testing.checks.streaming import STREAMING

CHECKS: tuple[Check, ...] = (
    *HYGIENE,
    *OUTPUTS,
    *PARAMETERS,
    *STREAMING,
    *CANCEL,
    *CACHE,
    *COMPLETE,
    *LIMITS,
)

__all__ = ["CHECKS", "Check"]
