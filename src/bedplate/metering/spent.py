"""What tenants have spent in the day and month of now, by the rows of a journal."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from bedplate.journal import Record
from bedplate.metering.bill import Pricer
from bedplate.metering.calendar import Windows
from bedplate.metering.rows import USAGE, row_of


def spent_by_rows(
    records: Iterable[Record], windows_of: Callable[[str], Windows]
) -> dict[str, tuple[int, int]]:
    """Return each tenant's (day, month) in micro-currency.

    Args:
        records: The journal from its beginning, at least of `bill.BILL_KINDS`.
        windows_of: The day and month of now of a tenant.

    Raises:
        JournalError: a record cannot be read, or a price list is unknown.

    Cost: reads every row; memory grows with the number of tenants.
    """
    pricer = Pricer()
    windows: dict[str, Windows] = {}
    spent: dict[str, tuple[int, int]] = {}
    for record in records:
        if record.kind != USAGE:
            pricer.see(record)
            continue
        row = row_of(record)
        known = windows.get(row.tenant)
        if known is None:
            known = windows[row.tenant] = windows_of(row.tenant)
        if not known.month_ns <= row.time_ns < known.month_end_ns:
            continue
        cost = pricer.price(row)[0].total
        day, month = spent.get(row.tenant, (0, 0))
        today = known.day_ns <= row.time_ns < known.day_end_ns
        spent[row.tenant] = (day + cost if today else day, month + cost)
    return spent
