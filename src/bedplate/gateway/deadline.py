"""How long a call may take by its client's own word."""

from __future__ import annotations

import asyncio
import re

from bedplate.errors import InvalidRequest
from bedplate.gateway.http import Exchange

DEADLINE_HEADER = "X-Bedplate-Deadline-Seconds"
DEADLINE_MAX_S = 86_400
_SECONDS = re.compile(r"\d{1,5}(\.\d{1,3})?", re.ASCII)


def due_at(exchange: Exchange) -> float | None:
    """Return when the call must be over, on the event loop's clock; None without a deadline.

    Raises:
        InvalidRequest: the header is no number of seconds within a day.
    """
    text = exchange.header(b"x-bedplate-deadline-seconds")
    if text is None:
        return None
    seconds = float(text) if _SECONDS.fullmatch(text) else 0.0
    if not 0 < seconds <= DEADLINE_MAX_S:
        raise InvalidRequest(
            f"{DEADLINE_HEADER} must be a number of seconds above 0 and up to {DEADLINE_MAX_S}, "
            "such as 30 or 2.5.",
            param=DEADLINE_HEADER,
        )
    return asyncio.get_running_loop().time() + seconds
