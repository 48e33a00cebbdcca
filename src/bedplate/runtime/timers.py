"""The one timer of the core, on the clock of the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from bedplate.core.units import SECOND_NS
from bedplate.runtime.clock import Clock


class CoreTimer:
    """Calls `fire` once the clock has reached the time set last, never before."""

    __slots__ = ("_at_ns", "_clock", "_fire", "_handle")

    def __init__(self, clock: Clock, fire: Callable[[], object]) -> None:
        self._clock = clock
        self._fire = fire
        self._at_ns = 0
        self._handle: asyncio.TimerHandle | None = None

    @property
    def at_ns(self) -> int:
        """When it fires; 0 while it is off."""
        return self._at_ns

    def set(self, at_ns: int) -> None:
        """Arm the timer in place of any time before; one that has passed fires next round."""
        assert at_ns > 0, "times are positive"
        if at_ns == self._at_ns:
            return
        self.clear()
        self._at_ns = at_ns
        self._arm()

    def clear(self) -> None:
        """Disarm the timer."""
        self._at_ns = 0
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _arm(self) -> None:
        delay_s = max(0, self._at_ns - self._clock.now_ns()) / SECOND_NS
        self._handle = asyncio.get_running_loop().call_later(delay_s, self._due)

    def _due(self) -> None:
        self._handle = None
        if self._clock.now_ns() < self._at_ns:
            self._arm()
            return
        self._at_ns = 0
        self._fire()
