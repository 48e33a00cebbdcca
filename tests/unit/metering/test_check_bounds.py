"""What a check keeps is bounded."""

from __future__ import annotations

from bedplate.metering.balance import NAMES_MAX
from bedplate.metering.check import reconcile
from tests.unit.metering.builders import Log, settled


def test_names_are_bounded() -> None:
    log = Log()
    log.card_up()
    for number in range(2 * NAMES_MAX):
        log.arrived(f"t-{number}")
        log.ended(700, 500, 5, f"t-{number}", exact=0)
        log.usage(settled(f"t-{number}", out_tokens=5, exact=False))
    log.report(1, 0, 0)
    (card,) = reconcile(log.records).cards
    assert len(card.explained_by) == NAMES_MAX
