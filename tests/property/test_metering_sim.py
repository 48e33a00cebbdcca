"""The rows of the real core, in runs full of faults, reconciled with their events."""

from __future__ import annotations

import pytest

from bedplate.core.actions import Action, Settled
from bedplate.core.base import Base
from bedplate.core.codec import body_of
from bedplate.core.events import Event
from bedplate.metering.bill import make_bill
from bedplate.metering.check import reconcile
from bedplate.metering.rows import fold
from tests.sim.checkers import Checkers
from tests.sim.options import draw
from tests.sim.world import World
from tests.unit.metering.builders import Log


class Journaled:
    """A core whose events and rows are written down as the runtime writes them."""

    def __init__(self) -> None:
        self.base = Base()
        self.log = Log()
        self.log.prices()

    @property
    def digest(self) -> bytes:
        return self.base.digest

    def handle(self, now_ns: int, event: Event) -> tuple[Action, ...]:
        actions = self.base.handle(now_ns, event)
        self.log.add(type(event).__name__, body_of(event))
        for action in actions:
            if isinstance(action, Settled):
                self.log.usage(action)
        return actions


@pytest.mark.parametrize("seed", range(12))
def test_rows_agree_with_events_whatever_fails(seed: int) -> None:
    core = Journaled()
    World(draw(seed), core, Checkers()).run()
    records = core.log.records
    report = reconcile(records)
    assert report.issues == ()
    assert report.turns > 0
    rows = [row for row in fold(records) if row.turn]
    assert report.metered_tokens == sum(row.tokens for row in rows)
    assert report.turns == len(rows)

    total = make_bill(records, by=["lane"]).totals[0]
    assert total.turns == len(rows)

    victim = max(rows, key=lambda row: row.tokens)
    if victim.tokens and victim.status in ("stop", "length", "tool_calls"):
        without = [record for record in records if record.seq != victim.seq]
        (issue,) = reconcile(without).issues
        assert (issue.kind, issue.turn, issue.tokens) == ("missing", victim.turn, victim.tokens)
