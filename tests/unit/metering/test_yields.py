"""Rows of turns that made way for others: one each, with the prompt as the first run found it."""

from __future__ import annotations

from bedplate.metering.check import reconcile
from tests.unit.metering.builders import Log, settled


def test_a_turn_that_yielded_is_open_and_metered_once_with_the_prompt_of_its_first_run() -> None:
    log = Log()
    log.card_up()
    log.arrived()
    log.started()
    log.ended(700, 500, 10, exact=0, status="yielded")
    waits = reconcile(log.records)
    assert (waits.issues, waits.in_flight_turns) == ((), 1)
    log.started(attempt=2)
    log.ended(700, 500, 32, attempt=2)
    log.usage(settled(attempts=2))
    log.report(700, 500, 32)
    assert reconcile(log.records).unexplained_tokens == 0
    double = Log()
    double.records = log.records[:-2]
    double.usage(settled(attempts=2, cached_tokens=0))
    (issue,) = reconcile(double.records).issues
    assert (issue.kind, issue.turn, issue.tokens) == ("different", "t-1", 500)


def test_a_turn_that_yielded_and_never_ran_again_is_metered_by_what_it_said_then() -> None:
    log = Log()
    log.arrived()
    log.started()
    log.ended(700, 500, 10, exact=0, status="yielded")
    log.usage(settled(status="cancelled", out_tokens=10, exact=False))
    assert reconcile(log.records).issues == ()


def test_a_turn_that_yielded_on_another_card_accounts_for_both() -> None:
    log = Log()
    log.card_up("card-0")
    log.card_up("card-1")
    log.arrived()
    log.started()
    log.ended(700, 500, 10, exact=0, status="yielded")
    log.started(attempt=2)
    log.ended(700, 500, 32, attempt=2)
    log.usage(settled(attempts=2, card="card-1"))
    log.report(700, 500, 10, "card-0")
    log.report(0, 0, 22, "card-1")
    report = reconcile(log.records)
    assert report.unexplained_tokens == 0
    assert [card.explained_by for card in report.cards] == [("t-1",), ("t-1",)]
