"""Tells the core when days and months begin and end in the time zones of its tenants."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from bedplate.core.events import CalendarDay, Event
from bedplate.core.ids import TenantId
from bedplate.core.limits import Policy
from bedplate.core.units import SECOND_NS
from bedplate.metering.calendar import Windows, windows_at


class Calendars:
    """One calendar for each zone of a policy, told at the start and at each midnight."""

    __slots__ = ("_ends", "_handle", "_now_ns", "_post", "_zone_of", "_zones")

    def __init__(
        self, policy: Policy, now_ns: Callable[[], int], post: Callable[[Event], int]
    ) -> None:
        tenants = (policy.default_tenant, *policy.tenants)
        self._zone_of = {tenant.tenant: tenant.zone for tenant in tenants}
        self._zones = sorted(set(self._zone_of.values()))
        self._now_ns = now_ns
        self._post = post
        self._ends: dict[str, int] = {}
        self._handle: asyncio.TimerHandle | None = None

    def windows_of(self, tenant: str) -> Windows:
        """Return the day and month of now of a tenant."""
        return windows_at(self.zone_of(TenantId(tenant)), self._now_ns())

    def zone_of(self, tenant: TenantId) -> str:
        """Return the time zone of a tenant."""
        return self._zone_of.get(tenant, self._zone_of[TenantId("")])

    def tell(self) -> None:
        """Tell the core of every zone whose day is new to it, and wait for the next midnight."""
        now_ns = self._now_ns()
        for zone in self._zones:
            if self._ends.get(zone, 0) <= now_ns:
                windows = windows_at(zone, now_ns)
                self._ends[zone] = windows.day_end_ns
                self._post(CalendarDay(zone, *windows))
        delay_s = max(0, min(self._ends.values()) - now_ns) / SECOND_NS
        self.stop()
        self._handle = asyncio.get_running_loop().call_later(delay_s, self.tell)

    def stop(self) -> None:
        """Tell nothing more."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
