"""Days and months of a time zone as instants: where a bill's lines and a budget's windows end."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, tzinfo
from typing import NamedTuple
from zoneinfo import ZoneInfo

_SECOND_NS = 1_000_000_000


class Windows(NamedTuple):
    """The day and the month that hold an instant; each ends where the next begins. Nanoseconds."""

    day_ns: int
    day_end_ns: int
    month_ns: int
    month_end_ns: int


def windows_at(zone: str, now_ns: int) -> Windows:
    """Return the day and the month of a zone in which `now_ns` lies.

    A day may have 23 or 25 hours. One whose midnight is left out begins where the clock goes on.

    Raises:
        ZoneInfoNotFoundError: no such zone.
    """
    info = UTC if zone == "UTC" else ZoneInfo(zone)
    today = datetime.fromtimestamp(now_ns // _SECOND_NS, info).date()
    tomorrow = today + timedelta(days=1)
    first = today.replace(day=1)
    next_first = (first + timedelta(days=32)).replace(day=1)
    found = Windows(*(_midnight(day, info) for day in (today, tomorrow, first, next_first)))
    assert found.day_ns <= now_ns < found.day_end_ns
    assert found.month_ns <= now_ns < found.month_end_ns
    return found


def _midnight(day: date, info: tzinfo) -> int:
    return round(datetime(day.year, day.month, day.day, tzinfo=info).timestamp()) * _SECOND_NS
