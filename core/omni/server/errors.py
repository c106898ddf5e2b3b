"""One error envelope, OpenAI's, for whatever goes wrong."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import reprlib
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

import msgspec
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from omni.errors import BadRequest, Busy, NotFound, OmniError, StageFailed, TooLarge, Unauthorized, Unavailable

log = logging.getLogger("omni.server")

_LINGER = 5.0
"""Seconds that the rest of a refused body is read for."""
_LULL = 0.5
"""Seconds without any of it, after which the client is taken to have nothing more to send."""

_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxlist, _SHORT.maxdict, _SHORT.maxstring, _SHORT.maxlong = 3, 8, 4, 100, 100


class MethodNotAllowed(OmniError):
    status = 405
    error_type = "invalid_request_error"
    default_code = "method_not_allowed"


class BodyTimeout(OmniError):
    """The client paused for too long while sending its request (408)."""

    status = 408
    error_type = "invalid_request_error"
    default_code = "request_timeout"


class Interrupted(Unavailable):
    """The server shuts down while the request is still being received."""

    default_code = "draining"


class HeadTooLarge(OmniError):
    """A request line and headers over the limit (431)."""

    status = 431
    error_type = "invalid_request_error"
    default_code = "headers_too_large"


class Refused(OmniError):
    """A status that a plugin's route raised as an ``HTTPException`` and that core has no class for."""

    error_type = "invalid_request_error"
    default_code = "refused"


_BY_STATUS: dict[int, Callable[[str], OmniError]] = {
    kind.status: kind for kind in (BadRequest, Unauthorized, NotFound, BodyTimeout, TooLarge, Busy, Unavailable)
}


def shown(value: object, limit: int = 60) -> str:
    """A client's value as it may stand in a message: its repr, bounded, at no more cost when the value is large."""
    text = repr(value[: limit + 1]) if isinstance(value, (str, bytes)) else _SHORT.repr(value)
    return text if len(text) <= limit else f"{text[:limit]}…"


def body_of(error: OmniError, request_id: str) -> dict[str, Any]:
    """The envelope. What went wrong inside stays in the log: a client gets the request id to ask for."""
    message = error.message
    if error.status == 500:
        message = f"the server failed on this request; its log has the reason under request id {request_id}"
    return {"error": {"message": message, "type": error.error_type, "param": error.param, "code": error.code}}


def headers_of(error: OmniError) -> list[tuple[bytes, bytes]]:
    headers: list[tuple[bytes, bytes]] = []
    retry_after = error.retry_after
    if retry_after is None and isinstance(error, (Busy, Unavailable)):
        retry_after = 5.0
    if retry_after is not None:
        headers.append((b"retry-after", str(max(1, math.ceil(retry_after))).encode()))
    if error.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if isinstance(error, (TooLarge, BodyTimeout, Interrupted)):
        # What the client still sends would be read as its next request.
        headers.append((b"connection", b"close"))
    return headers


def report(error: OmniError, request_id: str) -> None:
    """Log what a client does not see."""
    if error.status == 500:
        log.error("request %s failed: %s", request_id, error.message, exc_info=error)
    elif error.status > 500 and error.code not in ("loading", "draining"):
        log.warning("request %s: %d %s", request_id, error.status, error.message)


def response_to(
    error: OmniError, request_id: str, status: int | None = None, more: Mapping[str, Any] | None = None
) -> Response:
    """The answer to a request that ends in ``error``."""
    response = Response(
        msgspec.json.encode({**body_of(error, request_id), **(more or {})}),
        status or error.status,
        media_type="application/json",
    )
    response.raw_headers.extend(headers_of(error))
    return response


def translate(error: HTTPException, request: Request) -> OmniError:
    """The framework's own refusals as ours."""
    what = f"{request.method} {request.url.path}"
    if error.status_code == 404 and error.detail == HTTPStatus(404).phrase:
        return NotFound(f"there is no endpoint {shown(what, 120)}; /docs lists what there is")
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "other methods")
        return MethodNotAllowed(f"{shown(what, 120)}: this endpoint takes {allowed}")
    return _BY_STATUS.get(error.status_code, Refused)(str(error.detail))


async def on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    response = response_to(translate(error, request), request_id_of(request.scope), error.status_code)
    for name, value in (error.headers or {}).items():
        response.headers[name] = value
    return response


async def on_validation_error(request: Request, error: Exception) -> Response:
    """A plugin's route that validates with pydantic: its first complaint, as a 400 that names the field."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    param = ".".join(str(part)[:100] for part in first["loc"][1:]) or None
    text = f"{param}: {first['msg']}" if param else str(first["msg"])
    return response_to(BadRequest(text, param=param), request_id_of(request.scope))


async def on_omni_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, OmniError)
    request_id = request_id_of(request.scope)
    report(error, request_id)
    return response_to(error, request_id)


async def on_bug(request: Request, error: Exception) -> Response:
    """The framework raises ``error`` again when this is sent, and our middleware logs it."""
    return response_to(StageFailed(str(error)), request_id_of(request.scope))


def request_id_of(scope: Scope) -> str:
    return str(scope["omni"].request_id)


async def send_error(
    error: OmniError, scope: Scope, receive: Receive, send: Send, more: Mapping[str, Any] | None = None
) -> None:
    """``more``: further keys of the body."""
    request_id = request_id_of(scope)
    report(error, request_id)
    response = response_to(error, request_id, more=more)
    if not isinstance(error, (TooLarge, Interrupted)):
        await response(scope, receive, send)
        return
    # Most clients read an answer only when they have sent all, and closing now would reset the connection under
    # both: the answer goes out, and what still comes is thrown away for a while.
    await send({"type": "http.response.start", "status": response.status_code, "headers": response.raw_headers})
    await send({"type": "http.response.body", "body": bytes(response.body), "more_body": True})
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_LINGER):
            while (await asyncio.wait_for(receive(), _LULL)).get("more_body", False):
                pass
    await send({"type": "http.response.body", "body": b"", "more_body": False})
