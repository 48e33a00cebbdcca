"""The only place that makes error bodies: OpenAI's form, the right status, when to come back.

Clients of OpenAI's SDK retry 408, 409, 429 and 5xx by themselves. `x-should-retry` tells them where
that helps, `retry-after` when.
"""

from __future__ import annotations

import math

import orjson

from bedplate.errors import BedplateError, CapacityError, RequestError

Header = tuple[bytes, bytes]

JSON_TYPE: Header = (b"content-type", b"application/json")
RETRY_DEFAULT_S = 1.0
"""Told to a client that may come back when nobody knows better."""
RETRY_MAX_S = 3_600.0
"""A client is not told to wait longer by itself, such as for a budget's next day."""

_TYPE_BY_STATUS = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
}


class UnknownPath(RequestError):
    """No such endpoint."""

    code = "unknown_url"
    http_status = 404


class MethodNotAllowed(RequestError):
    """The endpoint exists, the method does not. `allow` lists those that do."""

    code = "method_not_allowed"
    http_status = 405

    def __init__(self, method: str, path: str, allow: tuple[str, ...]) -> None:
        super().__init__(f"{method} is not allowed for {path}. Use {' or '.join(allow)}.")
        self.allow = allow


class BodyTimeout(RequestError):
    """The client was too slow to send its body."""

    code = "request_timeout"
    http_status = 408
    retryable = True


class WrongContentType(RequestError):
    """The body is not declared as JSON."""

    code = "unsupported_media_type"
    http_status = 415


class HeadersTooLarge(RequestError):
    """The request line and headers are larger than the bound."""

    code = "headers_too_large"
    http_status = 431


def error_body(error: BedplateError) -> bytes:
    """Return OpenAI's error object for `error`, as JSON."""
    return orjson.dumps(
        {
            "error": {
                "message": error.message,
                "type": _type_of(error),
                "param": error.param,
                "code": error.code,
            }
        }
    )


def error_headers(error: BedplateError) -> list[Header]:
    """Return the headers that belong to `error`, `content-type` included."""
    retry_after_s = error.retry_after_s
    if retry_after_s is None and isinstance(error, CapacityError) and error.retryable:
        retry_after_s = RETRY_DEFAULT_S
    again = error.retryable or retry_after_s is not None
    if retry_after_s is not None and retry_after_s > RETRY_MAX_S:
        again = False
    headers = [JSON_TYPE, (b"x-should-retry", b"true" if again else b"false")]
    if retry_after_s is not None:
        whole = max(1, math.ceil(retry_after_s))
        headers.append((b"retry-after", b"%d" % whole))
        headers.append((b"retry-after-ms", b"%d" % max(1, round(retry_after_s * 1000))))
    if error.http_status == 401:
        headers.append((b"www-authenticate", b'Bearer realm="bedplate"'))
    if isinstance(error, MethodNotAllowed):
        headers.append((b"allow", ", ".join(error.allow).encode("ascii")))
    return headers


def internal_error(request_id: str) -> BedplateError:
    """Return what a client sees of a bug: no internals, and the id under which it is logged."""
    return BedplateError(
        f"The service failed while it handled this request. Tell its operator request {request_id}."
    )


def _type_of(error: BedplateError) -> str:
    status = error.http_status
    if status >= 500:
        return "server_error"
    return _TYPE_BY_STATUS.get(status, "invalid_request_error")
