"""Whole responses of calls that carried an idempotency key, to be sent again byte for byte.

The journal keeps them as contents. A bounded number of bytes stays in memory, so that most repeats
need no disk, and so that a service which keeps no content can answer repeats while it lives.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

MEMORY_BYTES_MAX = 32 << 20


class Answers:
    """Stored responses by their content hash, least recently used out first."""

    def __init__(self, stored: Callable[[str], bytes | None]) -> None:
        """Start empty; `stored` reads what the journal has under a hash."""
        self._stored = stored
        self._held: OrderedDict[str, bytes] = OrderedDict()
        self._bytes = 0

    def keep(self, content: str, data: bytes) -> None:
        """Remember a response."""
        if content in self._held or len(data) > MEMORY_BYTES_MAX:
            return
        self._held[content] = data
        self._bytes += len(data)
        while self._bytes > MEMORY_BYTES_MAX:
            _, dropped = self._held.popitem(last=False)
            self._bytes -= len(dropped)

    def get(self, content: str) -> bytes | None:
        """Return a response, None if it is nowhere any more."""
        data = self._held.get(content)
        if data is not None:
            self._held.move_to_end(content)
            return data
        return self._stored(content)
