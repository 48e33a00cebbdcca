"""Rate limits in OpenAI's headers, and how a bucket is read between two updates."""

from __future__ import annotations

import pytest

from bedplate.core.units import MINUTE_NS, SECOND_NS
from bedplate.gateway.limits import limit_headers
from bedplate.gateway.ports import Bucket, RateLimits
from bedplate.gateway.view import _bucket


def test_without_limits_there_are_no_headers() -> None:
    assert limit_headers(None) == []
    assert limit_headers(RateLimits(None, None)) == []


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.0, b"0ms"), (0.25, b"250ms"), (1.5, b"1.5s"), (90.0, b"1m30s")]
)
def test_only_what_is_limited_is_told(seconds: float, text: bytes) -> None:
    assert limit_headers(RateLimits(None, Bucket(100, 40, seconds))) == [
        (b"x-ratelimit-limit-tokens", b"100"),
        (b"x-ratelimit-remaining-tokens", b"40"),
        (b"x-ratelimit-reset-tokens", text),
    ]


def test_a_bucket_grows_evenly_to_its_limit() -> None:
    empty = 0
    assert _bucket(0, 5, 5) is None
    assert _bucket(60, empty, 0) == Bucket(60, 0, 60.0)
    assert _bucket(60, empty, 30 * SECOND_NS) == Bucket(60, 30, 30.0)
    assert _bucket(60, empty, 2 * MINUTE_NS) == Bucket(60, 60, 0.0)
    assert _bucket(60, -60 * MINUTE_NS, 0) == Bucket(60, -60, 120.0)
