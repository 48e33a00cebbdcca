"""Days and months of a zone: daylight saving, midnights that are left out, ends of years."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from bedplate.metering.calendar import windows_at

HOUR_NS = 3_600 * 10**9


def at(text: str) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * 10**9


@pytest.mark.parametrize(
    ("zone", "now", "day", "hours", "month", "month_end"),
    [
        ("UTC", "2026-12-31T23:59:59", "2026-12-31", 24, "2026-12-01", "2027-01-01"),
        (
            *("Asia/Shanghai", "2026-11-30T16:00:00", "2026-11-30T16:00:00", 24),
            *("2026-11-30T16:00:00", "2026-12-31T16:00:00"),
        ),
        (
            *("Europe/Berlin", "2026-03-29T12:00:00", "2026-03-28T23:00:00", 23),
            *("2026-02-28T23:00:00", "2026-03-31T22:00:00"),
        ),
        (
            *("Europe/Berlin", "2026-10-25T12:00:00", "2026-10-24T22:00:00", 25),
            *("2026-09-30T22:00:00", "2026-10-31T23:00:00"),
        ),
        (  # the clock went from midnight to one: the day began at 03:00 UTC
            *("America/Sao_Paulo", "2018-11-04T12:00:00", "2018-11-04T03:00:00", 23),
            *("2018-11-01T03:00:00", "2018-12-01T02:00:00"),
        ),
    ],
)
def test_windows(zone: str, now: str, day: str, hours: int, month: str, month_end: str) -> None:
    found = windows_at(zone, at(now))
    assert found.day_ns == at(day)
    assert found.day_end_ns - found.day_ns == hours * HOUR_NS
    assert (found.month_ns, found.month_end_ns) == (at(month), at(month_end))


@pytest.mark.parametrize("zone", ["UTC", "Asia/Shanghai", "America/New_York", "Asia/Kathmandu"])
def test_windows_follow_one_another_without_a_gap(zone: str) -> None:
    now = at("2026-01-01T00:00:00")
    for _ in range(366):
        found = windows_at(zone, now)
        after = windows_at(zone, found.day_end_ns)
        assert after.day_ns == found.day_end_ns
        assert windows_at(zone, found.day_end_ns - 1) == found
        now = found.day_end_ns
