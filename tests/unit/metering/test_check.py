from __future__ import annotations

from typing import Any

import pytest

from bedplate.metering.balance import Tokens
from bedplate.metering.check import Report, reconcile
from tests.unit.metering.builders import Log, settled


def plain(log: Log, turn: str = "t-1", *, card: str = "card-0", out: int = 32) -> None:
    log.arrived(turn)
    log.started(turn)
    log.ended(700, 500, out, turn)
    log.usage(settled(turn, card=card, out_tokens=out))


def issues(report: Report) -> list[tuple[str, str, int]]:
    return [(issue.kind, issue.turn, issue.tokens) for issue in report.issues]


def test_rows_events_and_counters_that_agree() -> None:
    log = Log()
    log.card_up()
    for number in range(5):
        plain(log, f"t-{number}")
    log.usage(settled("", prompt_tokens=0, cached_tokens=0, out_tokens=0))
    log.report(3_500, 2_500, 160)
    log.report(3_500, 2_500, 160)
    report = reconcile(log.records)
    assert (report.rows, report.turns, report.metered_tokens) == (6, 5, 5 * 732)
    assert report.issues == ()
    (card,) = report.cards
    assert (card.card, card.life, card.state) == ("card-0", 1, "up")
    assert card.counted == card.metered == Tokens(3_500, 2_500, 160)
    assert card.explained_by == ()
    assert report.unexplained_tokens == 0


def test_a_missing_row_is_named_with_its_tokens() -> None:
    log = Log()
    log.arrived()
    log.ended(700, 500, 32)
    report = reconcile(log.records)
    assert issues(report) == [("missing", "t-1", 732)]
    assert report.unexplained_tokens == 732


def test_a_second_row_is_named_with_its_tokens() -> None:
    log = Log()
    plain(log)
    log.usage(settled())
    report = reconcile(log.records)
    assert issues(report) == [("double", "t-1", 732)]


def test_a_row_of_no_turn_is_named() -> None:
    log = Log()
    log.usage(settled("t-9"))
    assert issues(reconcile(log.records)) == [("unknown", "t-9", 732)]


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        ({"out_tokens": 31}, 1),
        ({"prompt_tokens": 710}, 10),
        ({"cached_tokens": 490}, 10),
        ({"prompt_tokens": 690, "out_tokens": 42}, 20),
        ({"tenant": "wealth"}, 732),
        ({"model": "n"}, 732),
        ({"lane": 1}, 732),
        ({"attempts": 0}, 700 + 500),
    ],
)
def test_a_row_that_differs_from_the_events_is_named(fields: dict[str, Any], tokens: int) -> None:
    log = Log()
    log.arrived()
    log.started()
    log.ended(700, 500, 32)
    log.usage(settled(**fields))
    assert issues(reconcile(log.records)) == [("different", "t-1", tokens)]


def test_a_turn_that_never_ran_has_a_row_without_tokens_or_none() -> None:
    log = Log()
    log.arrived("t-1")
    log.usage(settled("t-1", attempts=0, prompt_tokens=0, cached_tokens=0, out_tokens=0, card=""))
    log.arrived("t-2")
    report = reconcile(log.records)
    assert (report.issues, report.turns, report.in_flight_turns) == ((), 1, 0)
    log.arrived("t-3")
    log.usage(settled("t-3", attempts=0, cached_tokens=0, out_tokens=0))
    assert issues(reconcile(log.records)) == [("different", "t-3", 700)]


def test_a_gap_row_with_tokens_is_named() -> None:
    log = Log()
    log.usage(settled("", prompt_tokens=1, cached_tokens=0, out_tokens=0))
    assert issues(reconcile(log.records)) == [("different", "", 1)]


def test_a_lost_turn_is_metered_by_what_was_delivered() -> None:
    log = Log()
    log.arrived()
    log.started()
    log.emitted(16)
    log.failed(20, retryable=0)
    lost = settled(status="error", cached_tokens=0, out_tokens=20)
    log.usage(lost)
    assert reconcile(log.records).issues == ()
    wrong = Log()
    wrong.records = log.records[:-1]
    wrong.usage(lost._replace(out_tokens=16))
    assert issues(reconcile(wrong.records)) == [("different", "t-1", 4)]


def test_a_lost_turn_without_a_row_is_missing() -> None:
    log = Log()
    log.arrived()
    log.failed(20, retryable=0)
    assert issues(reconcile(log.records)) == [("missing", "t-1", 720)]


def test_a_failed_over_turn_is_metered_by_its_last_attempt() -> None:
    log = Log()
    log.arrived()
    log.failed(0, attempt=1)
    log.started(attempt=2)
    log.ended(700, 0, 30, attempt=2)
    log.failed(9, attempt=1)  # a late word of the first attempt changes nothing
    log.usage(settled(cached_tokens=0, out_tokens=30, attempts=2))
    assert reconcile(log.records).issues == ()
    wrong = Log()
    wrong.records = log.records[:-1]
    wrong.usage(settled(cached_tokens=0, out_tokens=30, attempts=1))
    assert [issue.kind for issue in reconcile(wrong.records).issues] == ["different"]


def test_tokens_that_a_card_counted_and_nobody_metered_are_unexplained() -> None:
    log = Log()
    log.card_up()
    plain(log)
    log.report(700, 500, 32)
    log.report(800, 550, 40)
    report = reconcile(log.records)
    (card,) = report.cards
    assert card.difference == Tokens(100, 50, 8)
    assert card.unexplained_tokens == report.unexplained_tokens == 158
    assert card.explained_by == ()


def test_tokens_that_were_metered_and_no_card_counted_are_unexplained() -> None:
    log = Log()
    log.card_up()
    plain(log)
    log.report(700, 500, 32)
    log.report(690, 500, 32)
    assert reconcile(log.records).unexplained_tokens == 10


def test_tokens_filed_on_the_wrong_card_are_unexplained_on_both() -> None:
    log = Log()
    log.card_up("card-0")
    log.card_up("card-1")
    plain(log, card="card-1")
    for card, counted in (("card-0", (700, 500, 32)), ("card-1", (0, 0, 0))) * 2:
        log.report(*counted, card=card)
    assert [card.unexplained_tokens for card in reconcile(log.records).cards] == [1_232, 1_232]


def test_a_cancelled_turn_leaves_room_for_what_it_may_have_used() -> None:
    """An estimate of 700 and 5; the card can have computed up to 705 and 100."""
    log = Log()
    log.card_up()
    log.arrived(limit_tokens=100)
    log.started()
    log.ended(700, 500, 5, exact=0)
    log.usage(settled(status="cancelled", out_tokens=5, exact=False))
    for counted, unexplained in (
        ((700, 500, 7), 0),
        ((700, 500, 100), 0),
        ((700, 500, 102), 2),
        ((0, 0, 0), 0),
        ((705, 500, 7), 0),
        ((1_500, 500, 7), 795),
    ):
        told = Log()
        told.records = list(log.records)
        told.report(*counted)
        told.report(*counted)
        (card,) = reconcile(told.records).cards
        assert card.unexplained_tokens == unexplained, counted
        assert card.explained_by == ("t-1",)


def test_a_failed_attempt_leaves_room_on_the_cards_of_its_model_only() -> None:
    log = Log()
    log.card_up("card-0")
    log.card_up("card-1")
    log.card_up("other", model="n")
    log.arrived()
    log.started()
    log.failed(3, attempt=1)
    log.started(attempt=2)
    log.ended(703, 0, 32, attempt=2)
    log.usage(settled(prompt_tokens=703, cached_tokens=0, card="card-1", attempts=2))
    for _ in range(2):
        log.report(700, 0, 5, card="card-0")
        log.report(703, 0, 32, card="card-1")
        log.report(10, 0, 0, card="other")
    first, second, other = reconcile(log.records).cards
    assert (first.unexplained_tokens, first.explained_by) == (0, ("t-1",))
    assert (second.unexplained_tokens, second.explained_by) == (0, ())
    assert (other.unexplained_tokens, other.explained_by) == (10, ())


def test_a_resumed_turn_was_in_part_computed_elsewhere() -> None:
    log = Log()
    log.card_up("card-0")
    log.card_up("card-1")
    log.arrived(limit_tokens=100)
    log.started()
    log.failed(10, attempt=1)
    log.started(attempt=2)
    log.ended(700, 0, 32, attempt=2)
    log.usage(settled(cached_tokens=0, card="card-1", attempts=2))
    for _ in range(2):
        log.report(700, 0, 10, card="card-0")
        log.report(700, 0, 22, card="card-1")
    assert reconcile(log.records).unexplained_tokens == 0
    log.report(700, 0, 21, card="card-1")
    assert reconcile(log.records).unexplained_tokens == 1


def test_a_turn_in_flight_at_the_report_leaves_room() -> None:
    log = Log()
    log.card_up()
    plain(log, "t-1")
    log.report(700, 500, 32)
    log.arrived("t-2", prompt_tokens=900)
    log.started("t-2")
    log.report(1_600, 500, 50)
    report = reconcile(log.records)
    assert (report.in_flight_turns, report.unexplained_tokens) == (1, 0)
    assert report.cards[0].explained_by == ("t-2",)
    log.ended(900, 0, 40, "t-2")
    log.usage(settled("t-2", prompt_tokens=900, cached_tokens=0, out_tokens=40))
    assert reconcile(log.records).unexplained_tokens == 0, "ended after the report"
    log.report(1_600, 500, 72)
    log.report(1_600, 500, 72)
    report = reconcile(log.records)
    assert (report.unexplained_tokens, report.cards[0].explained_by) == (0, ())
    log.report(1_600, 500, 73)
    assert reconcile(log.records).unexplained_tokens == 1, "nothing was in flight any more"


def test_a_report_measured_before_a_turn_ended_may_lack_it() -> None:
    log = Log()
    log.card_up()
    log.report(0, 0, 0)
    plain(log)
    log.report(0, 0, 0)
    report = reconcile(log.records)
    assert report.unexplained_tokens == 0
    assert report.cards[0].explained_by == ("t-1",)
    log.report(0, 0, 0)
    assert reconcile(log.records).unexplained_tokens == 700 + 500 + 32


def test_a_card_that_died_is_told_and_not_judged() -> None:
    log = Log()
    log.card_up()
    plain(log, "t-1")
    log.report(700, 500, 32)
    plain(log, "t-2")
    log.card_down()
    log.card_up()
    plain(log, "t-3")
    log.report(700, 500, 32)
    log.report(700, 500, 32)
    report = reconcile(log.records)
    died, lives = report.cards
    assert (died.life, died.state, died.difference) == (1, "died", Tokens(-700, -500, -32))
    assert died.explained_by == ("t-2",)
    assert (lives.life, lives.state, lives.difference) == (2, "up", Tokens(0, 0, 0))
    assert report.unexplained_tokens == 0


def test_a_card_that_reported_all_before_it_went_down_is_judged() -> None:
    log = Log()
    log.card_up()
    plain(log)
    log.report(700, 500, 32)
    log.report(700, 500, 33)
    log.card_down()
    (card,) = reconcile(log.records).cards
    assert (card.state, card.unexplained_tokens) == ("down", 1)


def test_a_card_that_never_reports_is_told_apart() -> None:
    log = Log()
    log.card_up("card-0")
    log.card_up("card-1")
    plain(log)
    report = reconcile(log.records)
    assert [card.state for card in report.cards] == ["silent", "up"]
    assert report.unexplained_tokens == 0


def test_embedding_calls_count_on_their_card_or_leave_room_for_just_their_tokens() -> None:
    log = Log()
    log.card_up()
    log.usage(settled("", session="", prompt_tokens=40, cached_tokens=0, out_tokens=0))
    log.report(40, 0, 0)
    log.report(40, 0, 0)
    assert reconcile(log.records).unexplained_tokens == 0
    log.usage(settled("", session="", card="", prompt_tokens=5, cached_tokens=0, out_tokens=0))
    log.report(45, 0, 0)
    assert reconcile(log.records).unexplained_tokens == 0
    log.report(46, 0, 0)
    assert reconcile(log.records).unexplained_tokens == 1


def test_kv_of_no_session_is_no_call_and_has_no_tokens() -> None:
    log = Log()
    log.card_up()
    kept = {"session": "", "card": "", "status": "closed", "cached_tokens": 0, "out_tokens": 0}
    log.usage(settled("", prompt_tokens=0, kv_pool_token_ns=5, **kept))
    log.report(0, 0, 0)
    report = reconcile(log.records)
    assert report.unexplained_tokens == 0
    assert report.cards[0].explained_by == ()
    log.usage(settled("", prompt_tokens=7, kv_pool_token_ns=5, **kept))
    assert reconcile(log.records).unexplained_tokens == 7


def test_an_estimated_prompt_leaves_the_cards_context_as_room() -> None:
    log = Log()
    log.card_up(context=4_096)
    log.arrived(exact=0, prompt_tokens=10, limit_tokens=0)
    log.started()
    log.ended(10, 0, 5, exact=0)
    log.usage(settled(prompt_tokens=10, cached_tokens=0, out_tokens=5, exact=False))
    log.report(4_096, 0, 5)
    log.report(4_096, 0, 5)
    assert reconcile(log.records).unexplained_tokens == 0
    log.report(4_097, 0, 5)
    assert reconcile(log.records).unexplained_tokens == 1
