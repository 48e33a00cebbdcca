"""Money and tokens: reserved at the door, settled from the rows, never passed (INV-20)."""

from __future__ import annotations

from typing import Any

import pytest

from bedplate.core import actions as act
from bedplate.core import events as ev
from bedplate.core import view
from bedplate.core.charges import amount, highest
from bedplate.core.ids import SessionId, TenantId
from bedplate.core.prices import DEFAULT_PRICES
from bedplate.core.snapshot import restore, snapshot
from bedplate.core.states import Session, Tenant
from bedplate.core.units import MINUTE_NS, SECOND_NS
from tests.unit.core.steps import FREE, Steps

DAY_NS = 24 * 60 * MINUTE_NS
UNIT = DEFAULT_PRICES._replace(
    uncached_micro=1_000_000,
    cached_micro=1_000_000,
    output_micro=1_000_000,
    card_kv_micro=0,
    pool_kv_micro=0,
)
"""A token costs one millionth, in or out; time costs nothing. A call of Steps may cost 30."""


def steps(*, prices: Any = UNIT, **limits: Any) -> Steps:
    """A core with one card, whose tenants all have these limits."""
    run = Steps(prices=prices, default_tenant=FREE._replace(**limits))
    run.card(slots=16, running_max=16, kv_tokens=2_000)
    return run


def tenant(run: Steps) -> Tenant:
    return run.base.state.tenants[TenantId("t")]


def session(run: Steps, name: str) -> Session:
    return run.base.state.sessions[SessionId(name)]


def day(run: Steps, number: int, *, month: int = 0) -> None:
    """The calendar's word for a day counted from now, of a month of ten days."""
    start = 1_000 * SECOND_NS + number * DAY_NS
    month_ns = 1_000 * SECOND_NS + month * 10 * DAY_NS
    run.tell(ev.CalendarDay("UTC", start, start + DAY_NS, month_ns, month_ns + 10 * DAY_NS))


# One session.


@pytest.mark.parametrize("key", ["session_total_tokens_max", "session_micro_max"])
def test_failures_f01_three_of_eight_at_one_instant(key: str) -> None:
    """F01: a cap of three calls' cost, eight at once: three run, five are told why."""
    run = steps(**{key: 90})
    refused = []
    for number in range(8):
        run.arrive(f"t{number}", "s", branch=number)
        refused += run.said(act.Refuse)
        assert len(run.said(act.Dispatch)) == (number < 3)
    assert {refusal.reason for refusal in refused} == {"session_budget_exceeded"}
    assert len(refused) == 5
    first = refused[0]
    money = key == "session_micro_max"
    none, ninety, thirty = ("0 CNY", "0.00009 CNY", "0.00003 CNY") if money else ("0", "90", "30")
    words = f"spent {none}, reserved {ninety}, limit {ninety}, this call may take {thirty}"
    assert f": {words}; " in first.detail
    assert first.retry_after_ns == SECOND_NS, "the three may need less than they reserved"


@pytest.mark.parametrize("key", ["session_total_tokens_max", "session_micro_max", "day_micro_max"])
def test_failures_f01_an_estimate_reserves_the_most_that_it_can_be(key: str) -> None:
    """Calls of one instant whose prompts are far longer than estimated pass no budget together."""
    run = steps(**{key: 300})
    refused = 0
    for number in range(5):
        turn = f"t{number}"
        run.arrive(turn, "s", branch=number, exact=False, least_tokens=1, most_tokens=120)
        refused += len(run.said(act.Refuse))
    assert refused == 3, "two of 120 + 10 fit in 300"
    for number in range(2):
        run.end(f"t{number}", prompt_tokens=120, out_tokens=10, kv_tokens=0)
    assert (session(run, "s").spent_tokens, session(run, "s").spent_micro) == (260, 260)
    assert session(run, "s").reserved_tokens == tenant(run).reserved_micro == 0


def test_failures_f01_spent_is_the_sum_of_what_it_cost() -> None:
    """F01: after settling, spent is the actual cost; a call that fails gives all back."""
    run = steps(session_micro_max=90)
    for number in range(3):
        run.arrive(f"t{number}", "s", branch=number)
    run.end("t0", out_tokens=4, kv_tokens=24)
    run.fail("t1", retryable=False)
    run.end("t2", status="error")
    assert (session(run, "s").spent_micro, session(run, "s").reserved_micro) == (24, 0)
    run.arrive("t3", "s")
    run.arrive("t4", "s", branch=1)
    assert not run.said(act.Refuse), "24 + 30 + 30 is within 90"
    run.arrive("t5", "s", branch=2)
    assert run.one(act.Refuse).detail.startswith("money of the session: spent 0.000024 CNY")
    assert tenant(run).day_micro == 24


@pytest.mark.parametrize("how", ["client_cancelled", "deadline", "session closed"])
def test_what_a_client_ends_itself_it_pays_for(how: str) -> None:
    """Else an answer that is cut before its last token is free, as often as one likes."""
    run = steps(day_micro_max=1_000)
    run.arrive("t0", "s")
    if how == "session closed":
        run.close("s")
    else:
        run.cancel("t0", how)
    run.end("t0", status="cancelled", out_tokens=9, kv_tokens=0)
    assert run.one(act.Settled).status == "cancelled"
    assert tenant(run).day_micro == 20 + 9


def test_failures_f01_a_reservation_orphaned_by_a_crash_ends_with_its_turn() -> None:
    """F01: recovery ends what ran as lost and stops what waited: nothing stays reserved."""
    run = steps(session_micro_max=90, running_max=1)
    for number in range(3):
        run.arrive(f"t{number}", "s", branch=number)
    run.base = restore(snapshot(run.base))
    assert session(run, "s").reserved_micro == 90
    run.cancel("t1")
    run.cancel("t2")
    run.end("t0", status="lost", prompt_tokens=0, out_tokens=0, kv_tokens=0, exact=False)
    run.down()
    assert (session(run, "s").spent_micro, session(run, "s").reserved_micro) == (0, 0)
    assert tenant(run).reserved_micro == 0


def test_a_call_that_a_session_can_never_afford_is_not_told_to_come_back() -> None:
    run = steps(session_total_tokens_max=29)
    run.arrive("t0", "s")
    assert run.one(act.Refuse).retry_after_ns == 0
    assert SessionId("s") not in run.base.state.sessions


def test_tokens_of_a_session_count_whole_prompts_each_time() -> None:
    """What the engine had cached was sent and used all the same."""
    run = steps(session_total_tokens_max=100)
    run.arrive("t0", "s")
    run.end("t0", cached_tokens=10)
    run.stored(run.one(act.StoreKv))
    run.arrive("t1", "s", prompt_tokens=40, reuse_tokens=30, limit_tokens=10)
    run.end("t1", prompt_tokens=40, cached_tokens=30, kv_tokens=50)
    assert session(run, "s").spent_tokens == 80
    run.arrive("t2", "s", prompt_tokens=11, limit_tokens=10)
    assert run.one(act.Refuse).reason == "session_budget_exceeded"


# A tenant's day and month.


def test_failures_f02_the_default_limit_binds_an_unknown_tenants_first_calls() -> None:
    """F02: eight calls of one instant of somebody new, a budget of about nothing: all refused."""
    run = steps(day_micro_max=1)
    for number in range(8):
        run.arrive(f"t{number}")
        assert run.one(act.Refuse).reason == "budget_exceeded"
    assert [found.tenant for found in view.tenants(run.base)] == ["t"]
    assert not run.base.state.sessions


def test_a_budget_is_not_passed_by_calls_of_one_instant() -> None:
    run = steps(day_micro_max=100, month_micro_max=1_000)
    for number in range(5):
        run.arrive(f"t{number}")
    assert run.one(act.Refuse).detail.startswith(
        "money of the day of tenant t: spent 0 CNY, reserved 0.00009"
    )
    assert tenant(run).reserved_micro == 90


def test_a_refusal_tells_when_the_day_ends_and_what_the_lanes_limit_costs() -> None:
    run = steps(day_micro_max=20)
    day(run, 0)
    run.arrive("a", limit_tokens=0)
    detail = run.one(act.Refuse).detail
    assert "money of the day of tenant t, which ends in " in detail
    assert detail.endswith("tokens of output count: set max_tokens")


def test_a_new_day_begins_by_the_calendar_and_the_month_goes_on() -> None:
    run = steps(day_micro_max=40, month_micro_max=70)
    day(run, 0)
    run.arrive("t0")
    run.end("t0")
    run.arrive("t1")
    refusal = run.one(act.Refuse)
    assert refusal.retry_after_ns == DAY_NS - SECOND_NS, "until midnight"
    run.now += DAY_NS
    day(run, 1)
    run.arrive("t2")
    assert not run.said(act.Refuse)
    run.end("t2")
    run.now += DAY_NS
    day(run, 2)
    run.arrive("t3")
    assert run.one(act.Refuse).detail.startswith(
        "money of the month of tenant t, which ends in 8 d 0 h (UTC): spent 0.00006 CNY"
    )
    run.now += 8 * DAY_NS
    day(run, 10, month=1)
    run.arrive("t4")
    assert not run.said(act.Refuse)


def test_a_calendar_that_comes_late_loses_nothing() -> None:
    """After midnight a row is of the new day, whether the core was told of it yet or not."""
    run = steps(day_micro_max=90)
    day(run, 0)
    run.arrive("t0")
    run.arrive("t1")
    run.end("t0")
    run.now += DAY_NS
    run.end("t1")
    assert tenant(run).day_micro == 30
    day(run, 1)
    run.arrive("t2")
    assert (tenant(run).day_micro, tenant(run).reserved_micro) == (30, 30)
    assert tenant(run).month_micro == 60


def test_looking_changes_nothing() -> None:
    """A picture taken after midnight shows a day without spending before any call comes."""
    run = steps()
    day(run, 0)
    run.arrive("t0")
    run.end("t0")
    assert view.tenants(run.base)[0].day_micro == 30
    before = snapshot(run.base)
    run.now += DAY_NS
    day(run, 1)
    assert view.tenants(run.base)[0].day_micro == 0
    assert view.tenants(run.base)[0].month_micro == 30
    assert tenant(run).day_micro == 30, "the core rolls it when it next counts"
    assert snapshot(run.base)["seq"] == before["seq"] + 1


def test_a_limit_that_comes_later_counts_what_was_spent_before() -> None:
    run = steps()
    run.arrive("t0", "s")
    run.end("t0")
    limited = FREE._replace(day_micro_max=59, session_micro_max=59)
    run.tell(ev.PolicyChanged(run.policy._replace(default_tenant=limited)))
    run.arrive("t1")
    assert run.one(act.Refuse).reason == "budget_exceeded"
    run.arrive("t2", "s")
    assert run.one(act.Refuse).reason == "session_budget_exceeded"


def test_operators_are_warned_once_at_80_percent_and_once_at_the_end() -> None:
    run = steps(day_micro_max=100, month_micro_max=250)
    day(run, 0)
    found = []
    for number in range(3):
        run.arrive(f"t{number}")
        run.end(f"t{number}")
        found.append([(a.kind, a.level) for a in run.said(act.Alarm) if a.kind != "card_kv"])
    assert found == [[], [], [("budget_day", 1)]], "90 of 100"
    run.arrive("t3", prompt_tokens=5, limit_tokens=5)
    run.end("t3", prompt_tokens=5, out_tokens=5, kv_tokens=0)
    assert [(a.kind, a.level) for a in run.said(act.Alarm)] == [("budget_day", 2)]


# What is enforced is what the rows say.


def test_failures_f03_time_that_passes_spends_what_the_rows_say() -> None:
    """F03: KV that is kept costs when its row is written; sixty calls later it is the rows' sum."""
    prices = DEFAULT_PRICES._replace(card_kv_micro=10**12, card_hour_micro=3_600_000_000)
    run = steps(prices=prices, session_micro_max=10**15)
    for number in range(60):
        run.arrive(f"t{number}", "s", branch=number % 3, reuse_tokens=15 if number > 2 else 0)
        run.end(f"t{number}", cached_tokens=number % 20)
        for order in run.said(act.StoreKv):
            run.stored(order)
    before = tenant(run).day_micro
    assert before == session(run, "s").spent_micro > 60 * 62_500, "a second of a slot each"
    run.now += 60 * MINUTE_NS
    run.close("s")
    assert tenant(run).day_micro > before, "the last gap is a row of its own"


def test_failures_f06_a_call_takes_its_tokens_not_one() -> None:
    """F06: 7,000 in and 3,000 out of 111 tokens a minute: 10,000 are gone, the next is refused."""
    run = Steps(default_tenant=FREE._replace(tokens_per_minute=111))
    run.card(kv_tokens=20_000, context_tokens=20_000)
    run.arrive("t0", "s", prompt_tokens=7_000, limit_tokens=3_000)
    run.end("t0", prompt_tokens=7_000, out_tokens=3_000, kv_tokens=10_000)
    run.arrive("t1", "s", prompt_tokens=1, limit_tokens=1)
    refusal = run.one(act.Refuse)
    assert refusal.reason == "quota_exceeded"
    owed = 10_000 - 111 - 111 / 60
    assert refusal.retry_after_ns == pytest.approx(owed / 111 * MINUTE_NS, rel=0.001)
    session_budget = steps(session_total_tokens_max=111)
    session_budget.arrive("t0", "s", prompt_tokens=100, limit_tokens=11)
    session_budget.end("t0", prompt_tokens=100, out_tokens=11, kv_tokens=111)
    assert session(session_budget, "s").spent_tokens == 111
    session_budget.arrive("t1", "s", prompt_tokens=1, limit_tokens=1)
    assert session_budget.one(act.Refuse).reason == "session_budget_exceeded"


def test_failures_f18_every_event_twice_is_charged_once() -> None:
    """F18: what comes again changes neither rows nor what is spent."""
    run = steps(session_micro_max=10_000)
    run.arrive("t0", "s")
    run.tell(ev.TurnStarted(run.one(act.Dispatch).turn, 1, 20, 0))
    run.tell(ev.TurnStarted(run.base.state.turns["t0"].id, 1, 20, 0))  # type: ignore[index]
    run.end("t0")
    assert len(run.said(act.Settled)) == 1
    run.end("t0")
    assert not run.said(act.Settled)
    run.fail("t0")
    run.cancel("t0")
    assert not run.said(act.Settled)
    assert (session(run, "s").spent_micro, tenant(run).day_micro) == (30, 30)


def test_the_ledgers_word_replaces_what_a_new_core_does_not_know() -> None:
    run = steps(day_micro_max=100, month_micro_max=1_000)
    day(run, 0)
    run.tell(ev.LedgerRead(TenantId("t"), 71, 500))
    run.arrive("t0")
    assert run.one(act.Refuse).detail.startswith(
        "money of the day of tenant t, which ends in 1 d 0 h (UTC): spent 0.000071 CNY"
    )


def test_a_snapshot_carries_budgets_and_calendars() -> None:
    run = steps(day_micro_max=1_000)
    day(run, 0)
    run.arrive("t0", "s")
    saved = snapshot(run.base)
    again = restore(saved)
    assert snapshot(again) == saved
    assert again.state.tenants[TenantId("t")].reserved_micro == 30


# The worst case.


@pytest.mark.parametrize(("tokens", "expected"), [(3, 3), (1_000_003, 1_000_003)])
def test_whole_prices_reserve_exactly_what_a_call_can_cost(tokens: int, expected: int) -> None:
    assert highest(UNIT, prompt_tokens=tokens, limit_tokens=0) == expected


def test_amounts_in_words_lose_nothing() -> None:
    for micro, words in ((0, "0 CNY"), (1, "0.000001 CNY"), (1_500_000, "1.5 CNY")):
        assert amount(micro, DEFAULT_PRICES) == words
