"""Foreign errors in our terms: by status, by transport, without secrets."""

from __future__ import annotations

import orjson
import pytest

from bedplate.engines.openai import faults
from bedplate.engines.openai.connection import NotHttp, Silent, TransportError, Unreachable
from bedplate.errors import (
    BedplateError,
    ContextTooLong,
    EngineLost,
    EngineProtocolError,
    EngineTimeout,
    InvalidRequest,
)


def refusal(
    body: object, status: int = 400, retry_after: str | None = None, secret: str = ""
) -> faults.Refusal:
    data = body if isinstance(body, bytes) else orjson.dumps(body)
    return faults.Refusal(status, data, retry_after, secret)


@pytest.mark.parametrize(
    ("body", "message", "param"),
    [
        ({"error": {"message": "bad", "param": "seed", "code": 400}}, "bad", "seed"),
        ({"object": "error", "message": "bad", "param": None, "code": 400}, "bad", None),
        ({"error": "bad"}, "bad", None),
        ({"detail": "bad"}, "bad", None),
        ({"detail": [{"loc": ["body", "n"]}]}, '[{"loc":["body","n"]}]', None),
        (b"bad gateway page", "bad gateway page", None),
        (b"", "status 400", None),
        ([1], "status 400", None),
    ],
)
def test_error_bodies_are_read_in_the_forms_that_servers_use(
    body: object, message: str, param: str | None
) -> None:
    error = refusal(body).error("up")
    assert type(error) is InvalidRequest
    assert (error.message, error.param) == (message, param)


@pytest.mark.parametrize(
    "body",
    [
        {"error": {"message": "too long", "code": "context_length_exceeded"}},
        {"message": "This model's maximum context length is 4096 tokens."},
    ],
)
def test_a_context_that_does_not_fit_is_named_so(body: object) -> None:
    assert type(refusal(body).error("up")) is ContextTooLong


def test_messages_are_cut_and_cleaned_of_the_key() -> None:
    error = refusal({"message": "sk-1 " + "x" * 2_000}, secret="sk-1").error("up")
    assert "sk-1" not in error.message
    assert len(error.message) == faults.MESSAGE_CHARS_MAX


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("7", 7.0), ("0.5", 0.5), ("1e9", 1.0), ("-1", 1.0), ("nan", 1.0), ("soon", 1.0), (None, 1.0)],
)
def test_retry_after_is_a_sane_number_of_seconds(text: str | None, seconds: float) -> None:
    assert refusal({}, 429, text).error("up").retry_after_s == seconds


def test_a_refusal_is_about_a_field_by_param_or_by_words() -> None:
    assert refusal({"error": {"message": "no", "param": "priority"}}).names("priority")
    assert refusal({"message": "Extra inputs: stream_options"}).names("stream_options")
    assert refusal({"message": "stream options are not allowed"}).names("stream_options")
    assert not refusal({"message": "no"}).names("priority")
    assert not refusal({"message": "priority"}, 500).names("priority")


@pytest.mark.parametrize(
    ("raised", "kind", "retryable"),
    [
        (TransportError("cut"), EngineLost, True),
        (ConnectionResetError(), EngineLost, True),
        (Unreachable("it did not answer in time"), EngineLost, True),
        (Silent(), EngineTimeout, False),
        (TimeoutError(), EngineTimeout, False),
        (NotHttp("no status line"), EngineProtocolError, True),
    ],
)
def test_transport_failures_say_whether_a_resend_is_safe(
    raised: Exception, kind: type[BedplateError], retryable: bool
) -> None:
    error = faults.of_transport(raised, "up")
    assert type(error) is kind
    assert error.retryable is retryable
    assert "up" in error.message
