"""Rate limits as OpenAI's response headers tell them."""

from __future__ import annotations

from bedplate.gateway.errors_http import Header
from bedplate.gateway.ports import RateLimits


def limit_headers(limits: RateLimits | None) -> list[Header]:
    """Return the `x-ratelimit-*` headers, none for what has no limit."""
    headers: list[Header] = []
    if limits is None:
        return headers
    for name, bucket in ((b"requests", limits.requests), (b"tokens", limits.tokens)):
        if bucket is None:
            continue
        headers += [
            (b"x-ratelimit-limit-" + name, b"%d" % bucket.limit),
            (b"x-ratelimit-remaining-" + name, b"%d" % max(0, bucket.remaining)),
            (b"x-ratelimit-reset-" + name, _duration(bucket.full_in_s)),
        ]
    return headers


def _duration(seconds: float) -> bytes:
    """Return a time span in OpenAI's form: 20ms, 1.5s, 6m0s."""
    if seconds < 1:
        return b"%dms" % round(seconds * 1000)
    if seconds < 60:
        return b"%gs" % round(seconds, 3)
    return b"%dm%ds" % divmod(round(seconds), 60)
