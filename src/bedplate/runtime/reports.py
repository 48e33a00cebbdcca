"""Which reports of the engines are worth a record: a service that does nothing writes nothing."""

from __future__ import annotations

from bedplate.core.events import CardReport
from bedplate.core.ids import CardId


class Reports:
    """Remembers each card's last report, and what else had happened by then."""

    def __init__(self) -> None:
        self._last: dict[CardId, tuple[CardReport, int]] = {}
        self._taken = 0

    def is_news(self, report: CardReport, events: int) -> bool:
        """Tell whether anything changed since the card's last report, and remember this one.

        `events` counts what the core has handled. A report that says the same is news too if
        anything but reports came in between: the bill is checked against the account as it stands
        at a report, so a turn that ended is followed by one.
        """
        stand = (report, events - self._taken)
        if self._last.get(report.card) == stand:
            return False
        self._last[report.card] = stand
        self._taken += 1
        return True
