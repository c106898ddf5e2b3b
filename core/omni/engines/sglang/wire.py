"""Messages between the server and the process in which SGLang's engine lives, over a pair of sockets."""

from __future__ import annotations

from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

import msgspec

from omni.errors import ErrorInfo


class Start(msgspec.Struct, tag=True):
    """``arguments`` of SGLang; those named in ``by_user`` were set by the user and must exist."""

    arguments: dict[str, Any]
    by_user: list[str]


class Submit(msgspec.Struct, tag=True):
    """``ids``: int64 of every position; ``data``: for the model (see :mod:`.request`)."""

    number: int
    ids: bytes
    data: str
    max_new_tokens: int


class Abort(msgspec.Struct, tag=True):
    number: int


Order = Start | Submit | Abort


class Leaves(msgspec.Struct, tag=True):
    """``files``: what SGLang will leave behind when it is killed."""

    files: list[str]


class Ready(msgspec.Struct, tag=True):
    """``tokens``: positions that the KV cache holds."""

    tokens: int


class Columns(msgspec.Struct, tag=True):
    """What a request's next steps gave: ``[step of the engine, token, codes...]`` each. ``reason``: None while it goes
    on, ``stop`` (then the last column is the end token's) or ``length``."""

    number: int
    columns: list[list[int]]
    reason: str | None
    cached: int
    retractions: int


class Ended(msgspec.Struct, tag=True):
    """Nothing of this request is left in SGLang. ``error``: why it ended without a reason of its own."""

    number: int
    error: ErrorInfo | None = None


class Load(msgspec.Struct, tag=True):
    running: int
    waiting: int
    tokens: int


class Dead(msgspec.Struct, tag=True):
    """The engine cannot go on, or has not started."""

    error: ErrorInfo


Report = Leaves | Ready | Columns | Ended | Load | Dead

_orders = msgspec.msgpack.Decoder(Order)
_reports = msgspec.msgpack.Decoder(list[Report])


def send_order(connection: Connection, order: Order) -> None:
    connection.send_bytes(msgspec.msgpack.encode(order))


def receive_order(connection: Connection) -> Order:
    return _orders.decode(connection.recv_bytes())


def send_reports(connection: Connection, reports: Sequence[Report]) -> None:
    connection.send_bytes(msgspec.msgpack.encode(reports))


def receive_reports(connection: Connection) -> list[Report]:
    return _reports.decode(connection.recv_bytes())
