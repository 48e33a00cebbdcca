"""Errors of an endpoint in this service's own terms. The one place that maps them.

The endpoint's key and our credentials for it are ours: an answer of 401 or 403 is our fault, not
the client's, and no message carries the key.
"""

from __future__ import annotations

from typing import Any

import orjson

from bedplate.engines.base import JsonObject
from bedplate.engines.openai.connection import NotHttp, Unreachable
from bedplate.errors import (
    BedplateError,
    CapacityError,
    ContextTooLong,
    EngineError,
    EngineLost,
    EngineProtocolError,
    EngineTimeout,
    InvalidRequest,
    NoEngine,
)

MESSAGE_CHARS_MAX = 500
RETRY_AFTER_S_MAX = 600.0
_OURS = frozenset({401, 403, 404, 405})
_TOO_LONG = (
    "available context size",
    "maximum context length",
    "context length exceeded",
    "longer than the model's context",
)


class Refusal:
    """An answer that is no answer: its status, and what its body says.

    `message` is cut to a sane length and cleaned of the endpoint's key.
    """

    __slots__ = ("code", "message", "param", "retry_after_s", "status")

    def __init__(self, status: int, body: bytes, retry_after: str | None, secret: str) -> None:
        self.status = status
        self.retry_after_s = _seconds(retry_after)
        error = _error_object(_parsed(body))
        self.message = clean(str(error.get("message") or ""), secret) or f"status {status}"
        param, code = error.get("param"), error.get("code")
        self.param = param if isinstance(param, str) else None
        self.code = code if isinstance(code, str) else ""

    def names(self, field: str) -> bool:
        """Say whether the refusal is about this request field."""
        return self.status in (400, 422) and (
            self.param == field or field in self.message or field.replace("_", " ") in self.message
        )

    def error(self, engine: str) -> BedplateError:
        """Return the error to raise for it."""
        status = self.status
        if status in _OURS:
            return EngineProtocolError(
                f"engine {engine} refuses this service (status {status}): check url,"
                " upstream_model and api_key_env in its configuration"
            )
        if status == 429:
            return CapacityError(
                f"engine {engine} is busy: {self.message}", retry_after_s=self.retry_after_s or 1.0
            )
        if status == 503:
            return NoEngine(
                f"engine {engine} is not ready: {self.message}",
                retry_after_s=self.retry_after_s or 1.0,
            )
        if status in (408, 504):
            return EngineTimeout(f"engine {engine} ran out of time: {self.message}")
        if status >= 500:
            return EngineError(f"engine {engine} failed: {self.message}")
        if status >= 400:
            return _of_request(self.message, self.param, self.code)
        return EngineProtocolError(f"engine {engine} answered with status {status}")


def in_stream(chunk: JsonObject, secret: str) -> BedplateError:
    """Return the error for an error object inside a stream that began well."""
    error = _error_object(chunk)
    message = clean(str(error.get("message") or "no reason given"), secret)
    code = error.get("code")
    if isinstance(code, int) and 400 <= code < 500 and code not in (408, 429):
        param = error.get("param")
        return _of_request(message, param if isinstance(param, str) else None, "")
    return EngineError(f"the engine failed in the middle of the answer: {message}")


def of_transport(error: Exception, engine: str) -> BedplateError:
    """Return the error for what a connection raised.

    An endpoint that took the body and was silent is not asked again: another card would compute
    the same prompt as slowly (F10). Connections that are refused or break are.
    """
    if isinstance(error, Unreachable):
        return EngineLost(f"engine {engine} takes no connection: {error}")
    if isinstance(error, NotHttp):
        return EngineProtocolError(f"engine {engine} does not speak HTTP: {error}")
    if isinstance(error, TimeoutError):
        timeout = EngineTimeout(f"engine {engine} was silent for too long")
        timeout.retryable = False
        return timeout
    return EngineLost(f"engine {engine} closed the connection before the answer ended")


def clean(message: str, secret: str) -> str:
    """Cut a foreign message to length and take the endpoint's key out of it."""
    if secret:
        message = message.replace(secret, "[key]")
    return message[:MESSAGE_CHARS_MAX]


def _of_request(message: str, param: str | None, code: str) -> BedplateError:
    if code == "context_length_exceeded" or any(mark in message for mark in _TOO_LONG):
        return ContextTooLong(message, param=param)
    return InvalidRequest(message, param=param)


def _parsed(body: bytes) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return {"message": body[:MESSAGE_CHARS_MAX].decode(errors="replace").strip()}


def _error_object(body: Any) -> JsonObject:
    """Find the error in the forms that servers use: nested, flat, a text, or FastAPI's detail."""
    if not isinstance(body, dict):
        return {}
    error = body.get("error", body.get("detail", body))
    if isinstance(error, dict):
        return error
    if isinstance(error, list):
        return {"message": orjson.dumps(error).decode()}
    return {"message": error}


def _seconds(retry_after: str | None) -> float | None:
    """Read Retry-After in seconds; a date is not worth a clock here and is left out."""
    try:
        value = float(retry_after) if retry_after is not None else None
    except ValueError:
        return None
    if value is None or not 0 <= value <= RETRY_AFTER_S_MAX:
        return None
    return value
