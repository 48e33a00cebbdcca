"""The clock of the live driver: nanoseconds that never fall, over restarts too."""

from __future__ import annotations

import time


class Clock:
    """Wall clock at start plus monotonic time since.

    A wall clock that is set back or forth while the service runs changes nothing; one that was set
    back before a restart is held at the last journaled time until real time has passed it.
    """

    __slots__ = ("_last_ns", "_offset_ns")

    def __init__(self, *, last_ns: int = 0) -> None:
        """Start after `last_ns`, the time of the last record (0: none)."""
        wall_ns = max(time.time_ns(), last_ns + 1)
        self._offset_ns = wall_ns - time.monotonic_ns()
        self._last_ns = wall_ns

    def now_ns(self) -> int:
        """Return the time now, never less than any time returned before."""
        now_ns = time.monotonic_ns() + self._offset_ns
        if now_ns < self._last_ns:
            return self._last_ns
        self._last_ns = now_ns
        return now_ns
