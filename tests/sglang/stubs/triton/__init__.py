"""See ``inert``. What modules do with triton while they are imported works."""

from __future__ import annotations

from typing import Any

from inert import decorator, install

__version__ = "3.9.0"

jit = autotune = heuristics = decorator


class Config:
    def __init__(self, kwargs: dict[str, Any] | None = None, **options: Any) -> None:
        self.kwargs = kwargs or {}
        self.__dict__.update(options)


def cdiv(a: int, b: int) -> int:
    return -(-a // b)


def next_power_of_2(n: int) -> int:
    return 1 << max(0, n - 1).bit_length()


class Constant:
    def __init__(self, value: Any) -> None:
        self.value = value


install(__name__)

import triton.knobs as knobs  # noqa: E402
import triton.language as language  # noqa: E402 - modules use it as an attribute

language.constexpr = Constant
knobs.runtime = None  # SGLang looks for hooks there, which old releases do not have
