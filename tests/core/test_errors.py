"""Errors keep their meaning across processes."""

from __future__ import annotations

import pickle

import msgspec
import pytest

from omni.errors import BadRequest, Busy, ErrorInfo, OmniError, StageFailed, from_wire


def across(error: OmniError) -> OmniError:
    return from_wire(msgspec.msgpack.decode(msgspec.msgpack.encode(error.to_wire()), type=ErrorInfo))


CORE = [cls for cls in OmniError.kinds.values() if cls.__module__ == "omni.errors"]


@pytest.mark.parametrize("cls", CORE, ids=lambda cls: cls.__name__)
def test_every_error_crosses_as_itself(cls: type[OmniError]) -> None:
    sent = cls("what is wrong", param="input", code="too_odd", retry_after=2.5)
    got = across(sent)
    assert type(got) is cls
    assert vars(got) | {"status": cls.status, "error_type": cls.error_type} == vars(sent) | {
        "status": got.status,
        "error_type": got.error_type,
    }
    assert str(got) == "what is wrong"


def test_the_default_code_is_the_kinds() -> None:
    assert across(Busy("full")).code == "queue_full"
    assert across(BadRequest("no")).code == "invalid_value"
    assert across(StageFailed("broke")).code == "stage_failed"


def test_plugins_may_use_the_same_name_for_different_errors() -> None:
    def define(status: int) -> type[OmniError]:
        cls = type("Clash", (OmniError,), {"status": status, "__module__": f"plugin_{status}"})
        assert issubclass(cls, OmniError)
        return cls

    one, other = define(409), define(422)
    assert across(one("a")).status == 409
    assert across(other("b")).status == 422
    assert type(across(one("a"))) is one


def test_an_error_of_a_class_that_is_not_known_here_keeps_its_status() -> None:
    info = ErrorInfo(
        kind="elsewhere:Gone",
        message="it is gone",
        status=410,
        type="invalid_request_error",
        param="voice",
        code="gone",
    )
    got = from_wire(info)
    assert type(got) is OmniError
    assert (got.status, got.error_type, got.message, got.param, got.code) == (
        410,
        "invalid_request_error",
        "it is gone",
        "voice",
        "gone",
    )
    assert OmniError("other").status == 500


def test_statuses_are_those_of_http() -> None:
    for cls in CORE:
        assert 400 <= cls.status < 600
        assert cls.error_type in ("invalid_request_error", "rate_limit_error", "server_error")
        assert (cls.status >= 500) == (cls.error_type == "server_error")


def test_errors_survive_the_pickling_of_process_pools() -> None:
    got = pickle.loads(pickle.dumps(Busy("full", param="model", retry_after=3.0)))
    assert (type(got), got.message, got.param, got.retry_after) == (Busy, "full", "model", 3.0)
