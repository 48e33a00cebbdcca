"""Errors as OpenAI's clients read them."""

from __future__ import annotations

import orjson
import pytest

from bedplate import errors
from bedplate.errors import BedplateError, IdempotencyConflict, InvalidRequest, LaneFull
from bedplate.gateway import errors_http
from bedplate.gateway.errors_http import (
    MethodNotAllowed,
    error_body,
    error_headers,
    internal_error,
)


def every_error() -> list[type[BedplateError]]:
    found = [BedplateError]
    for cls in found:
        found += cls.__subclasses__()
    return [cls for cls in found if cls.__module__ in (errors.__name__, errors_http.__name__)]


def make(cls: type[BedplateError]) -> BedplateError:
    if cls is MethodNotAllowed:
        return MethodNotAllowed("PUT", "/v1/models", ("GET", "HEAD"))
    return cls("what happened", param="p")


@pytest.mark.parametrize("cls", every_error())
def test_every_error_has_openais_form(cls: type[BedplateError]) -> None:
    error = make(cls)
    body = orjson.loads(error_body(error))
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"] == error.message
    assert body["error"]["code"] == error.code
    headers = dict(error_headers(error))
    assert headers[b"content-type"] == b"application/json"
    if error.http_status in (429, 503) and isinstance(error, errors.CapacityError):
        waiting_helps = not isinstance(error, errors.BudgetExceeded)
        assert (int(headers.get(b"retry-after", 0)) >= 1) == waiting_helps
        assert headers[b"x-should-retry"] == (b"true" if waiting_helps else b"false")


@pytest.mark.parametrize(
    ("cls", "status", "kind"),
    [
        (errors.InvalidRequest, 400, "invalid_request_error"),
        (errors.NotAuthenticated, 401, "authentication_error"),
        (errors.NotAllowed, 403, "permission_error"),
        (errors.UnknownModel, 404, "invalid_request_error"),
        (errors.BodyTooLarge, 413, "invalid_request_error"),
        (errors.QuotaExceeded, 429, "rate_limit_error"),
        (errors.EngineLost, 502, "server_error"),
        (errors.NoEngine, 503, "server_error"),
        (errors.EngineTimeout, 504, "server_error"),
    ],
)
def test_status_and_type_agree(cls: type[BedplateError], status: int, kind: str) -> None:
    error = cls("x")
    assert error.http_status == status
    assert orjson.loads(error_body(error))["error"]["type"] == kind


def test_retry_after_is_rounded_up_and_exact_in_milliseconds() -> None:
    headers = dict(error_headers(LaneFull("x", retry_after_s=1.2)))
    assert headers[b"retry-after"] == b"2"
    assert headers[b"retry-after-ms"] == b"1200"


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (InvalidRequest("x"), b"false"),
        (IdempotencyConflict("other body"), b"false"),
        (IdempotencyConflict("running", retry_after_s=1), b"true"),
        (LaneFull("x"), b"true"),
        (errors.BudgetExceeded("x"), b"false"),
        (errors.BudgetExceeded("x", retry_after_s=1), b"true"),
        (errors.BudgetExceeded("x", retry_after_s=3_600), b"true"),
        (errors.BudgetExceeded("x", retry_after_s=84_669), b"false"),
        (errors.EngineLost("x"), b"true"),
        (errors.SchemaNotKept("x"), b"false"),
        (internal_error("req_1"), b"false"),
    ],
)
def test_a_client_is_told_whether_a_retry_can_help(error: BedplateError, again: bytes) -> None:
    assert dict(error_headers(error))[b"x-should-retry"] == again


def test_a_wrong_method_names_the_right_ones() -> None:
    assert dict(error_headers(MethodNotAllowed("PUT", "/x", ("GET", "HEAD"))))[b"allow"] == (
        b"GET, HEAD"
    )


def test_an_internal_error_tells_only_its_request() -> None:
    error = internal_error("req_abc")
    assert error.http_status == 500
    assert "req_abc" in error.message
