"""How items get from one stage to the next."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from omni.errors import OmniError
from omni.messages import Message


class Outlet(Protocol):
    """The sending end of an edge, used on the event loop's thread only.

    The stream that goes through it ends in exactly one ``end`` or ``fail``; later calls are ignored, since a
    cancelled consumer closes its edge while the producer may still be about to speak.
    """

    @property
    def room(self) -> int:
        """How many items the consumer takes now. A producer may overshoot by what one step gave it."""

    def put(self, item: Any) -> None: ...

    def end(self, count: int) -> None:
        """All is sent. ``count`` is how many items were put, as the producer counts them: an edge at which another
        number has arrived fails, so a lost or doubled item is never a shorter or longer success."""

    def fail(self, error: OmniError) -> None: ...

    def on_room(self, wake: Callable[[], None]) -> None:
        """``wake()`` is called each time room appears after there was none, never from inside a ``put``."""


class Transport(Protocol):
    """Makes the sending end for a receiving edge. Chosen once per edge, when the recipe is loaded."""

    name: str

    def connect(self, message_type: type[Message], receiver: Outlet) -> Outlet:
        """``receiver`` is the consumer's own end; what is put into the result arrives there."""
