"""Typed errors: each carries the HTTP status, a machine-readable code and the offending field.

An error keeps its meaning when it crosses a process or a network: :meth:`OmniError.to_wire` and
:func:`from_wire` are inverse to each other, so a stage in a child process can refuse a field and the
client still gets the 400 that names it.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec


class ErrorInfo(msgspec.Struct, frozen=True, array_like=True):
    """Wire form of an :class:`OmniError`; ``status`` and ``type`` are for a receiver that does not know ``kind``."""

    kind: str
    message: str
    status: int
    type: str
    param: str | None = None
    code: str | None = None
    retry_after: float | None = None


def _kind(cls: type[OmniError]) -> str:
    """A name that two plugins cannot both use."""
    return f"{cls.__module__}:{cls.__qualname__}"


class OmniError(Exception):
    """Base of every error that omni raises on purpose.

    ``status`` is the HTTP status, ``error_type`` and ``code`` fill OpenAI's error envelope, ``param`` names the
    request field and ``retry_after`` (seconds) says when another try makes sense.
    """

    status: int = 500
    error_type: str = "server_error"
    default_code: ClassVar[str] = "internal_error"
    kinds: ClassVar[dict[str, type[OmniError]]] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        OmniError.kinds[_kind(cls)] = cls

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code or self.default_code
        self.retry_after = retry_after

    def to_wire(self) -> ErrorInfo:
        return ErrorInfo(
            kind=_kind(self.__class__),
            message=self.message,
            status=self.status,
            type=self.error_type,
            param=self.param,
            code=self.code,
            retry_after=self.retry_after,
        )


class BadRequest(OmniError):
    """The request itself is wrong; trying again unchanged cannot help (400)."""

    status = 400
    error_type = "invalid_request_error"
    default_code = "invalid_value"


class Unauthorized(OmniError):
    status = 401
    error_type = "invalid_request_error"
    default_code = "invalid_api_key"


class NotFound(OmniError):
    status = 404
    error_type = "invalid_request_error"
    default_code = "not_found"


class ModelNotFound(NotFound):
    default_code = "model_not_found"


class TooLarge(OmniError):
    """A body or a file over the limit (413)."""

    status = 413
    error_type = "invalid_request_error"
    default_code = "request_too_large"


class Busy(OmniError):
    """Every slot and the queue are taken (429); ``retry_after`` is always set."""

    status = 429
    error_type = "rate_limit_error"
    default_code = "queue_full"


class Cancelled(OmniError):
    """The client went away or the request was cancelled (499, nginx's number; never seen by a client)."""

    status = 499
    error_type = "invalid_request_error"
    default_code = "cancelled"


class Unavailable(OmniError):
    """The server is draining or a stage is down (503)."""

    status = 503
    default_code = "unavailable"


class DeadlineExceeded(OmniError):
    status = 504
    default_code = "deadline_exceeded"


class StageFailed(OmniError):
    """A stage raised something that is not an :class:`OmniError`: a bug or lack of memory (500)."""

    default_code = "stage_failed"


class ConfigError(OmniError):
    """A recipe, an option or a plugin is wrong; raised at launch, never by a request."""

    default_code = "config_error"


class WeightsError(OmniError):
    """Weights cannot be found, downloaded or do not fit the model; says what to do."""

    default_code = "weights_error"


class MissingDependency(ConfigError):
    """A package that a recipe needs is not installed; the message holds the pip line."""

    default_code = "missing_dependency"


def from_wire(info: ErrorInfo) -> OmniError:
    """Rebuild the typed error. One whose class is not known here (another plugin's) becomes an :class:`OmniError` of
    the same status, type, code, field and text."""
    cls = OmniError.kinds.get(info.kind, OmniError)
    error = cls(info.message, param=info.param, code=info.code, retry_after=info.retry_after)
    error.status, error.error_type = info.status, info.type
    return error
