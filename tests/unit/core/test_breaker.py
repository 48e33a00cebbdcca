"""Circuit breakers and the retry budget: what happens when cards keep failing (F10, INV-21)."""

from __future__ import annotations

import pytest

from bedplate.core import actions as act
from bedplate.core import events as ev
from bedplate.core.ids import CardId, TurnId
from bedplate.core.limits import (
    BREAKER_PAUSE_MAX_NS,
    BREAKER_PAUSE_NS,
    BREAKER_STRIKES,
    BREAKER_WINDOW_NS,
    RESEND_FAST_NS,
)
from bedplate.core.snapshot import restore, snapshot
from bedplate.core.states import Card
from bedplate.core.units import SECOND_NS
from tests.unit.core.steps import POLICY, Steps

PROMPT = 32_768


def card_of(run: Steps, name: str) -> Card:
    return run.base.state.cards[CardId(name)]


def alarms(run: Steps) -> list[tuple[str, int]]:
    found = run.said(act.Alarm)
    return [(alarm.subject, alarm.level) for alarm in found if alarm.kind == "breaker"]


def endpoints(count: int, **changes: object) -> Steps:
    """Endpoints that keep their own cache, each with room for eight turns."""
    run = Steps(**changes)
    for number in range(count):
        run.card(f"c{number}", kv="hints", slots=8, running_max=8, kv_tokens=400_000,
                 context_tokens=50_000)  # fmt: skip
    return run


def strike(run: Steps, times: int, *, first: int = 0, after_ns: int = 0) -> None:
    """Fail so many turns on the only card, none to be tried again."""
    for number in range(first, first + times):
        run.now += after_ns
        run.arrive(f"x{number}")
        run.fail(f"x{number}", retryable=False)


# The breaker.


def test_a_card_that_fails_five_times_is_left_alone_and_one_turn_tries_it() -> None:
    run = endpoints(1)
    strike(run, BREAKER_STRIKES - 1)
    assert not alarms(run)
    strike(run, 1, first=10)
    assert alarms(run) == [("c0", 1)]
    run.arrive("early")
    refusal = run.one(act.Refuse)
    assert (refusal.reason, refusal.retry_after_ns) == ("no_engine", BREAKER_PAUSE_NS)
    run.timer(BREAKER_PAUSE_NS)
    assert card_of(run, "c0").breaker == "half_open"
    run.arrive("probe")
    assert run.one(act.Dispatch).turn == "probe"
    run.arrive("waits")
    assert not run.said(act.Dispatch)
    assert not run.said(act.Refuse)
    run.end("probe")
    assert alarms(run) == [("c0", 0)]
    assert run.one(act.Dispatch).turn == "waits"


def test_a_late_failure_that_comes_as_the_pause_ends_opens_the_card_again() -> None:
    run = endpoints(1)
    run.arrive("old")
    strike(run, BREAKER_STRIKES)
    run.now += BREAKER_PAUSE_NS  # no timer has fired yet
    run.fail("old", retryable=False)
    assert card_of(run, "c0").breaker == "open"
    run.arrive("early")
    assert run.one(act.Refuse).retry_after_ns == 2 * BREAKER_PAUSE_NS
    run.timer(2 * BREAKER_PAUSE_NS)
    assert card_of(run, "c0").breaker == "half_open"


@pytest.mark.parametrize("well", [True, False])
def test_a_turn_whose_load_ends_in_a_pause_begins_as_the_trial_of_its_card(well: bool) -> None:
    run = Steps()
    run.card(slots=8, running_max=8, kv_tokens=400)
    run.keep("first", "s")
    run.down()
    run.card(slots=8, running_max=8, kv_tokens=400)
    run.arrive("again", "s", prompt_tokens=35, reuse_tokens=30)
    order = run.one(act.LoadKv)
    strike(run, BREAKER_STRIKES)
    if well:
        run.loaded(order)
    else:
        run.lost("load", order)
    assert not run.said(act.Dispatch)
    run.timer(BREAKER_PAUSE_NS)
    begun = run.one(act.Dispatch)
    assert (begun.turn, begun.expect_cached_tokens) == ("again", 30 if well else 0)
    assert card_of(run, "c0").probe == "again"


def test_the_pause_doubles_up_to_its_longest() -> None:
    run = endpoints(1)
    strike(run, BREAKER_STRIKES)
    pauses = [BREAKER_PAUSE_NS << number for number in range(8)]
    for number, pause_ns in enumerate(pauses):
        pause_ns = min(pause_ns, BREAKER_PAUSE_MAX_NS)
        assert card_of(run, "c0").open_until_ns == run.now + pause_ns
        run.timer(pause_ns)
        run.arrive(f"p{number}")
        run.fail(f"p{number}", retryable=False)
        assert alarms(run) == [("c0", 1)]
    run.timer(BREAKER_PAUSE_MAX_NS)
    run.arrive("good")
    run.end("good")
    strike(run, BREAKER_STRIKES, first=50)
    assert card_of(run, "c0").open_until_ns == run.now + BREAKER_PAUSE_NS, "it began anew"


def test_good_ends_take_strikes_back_and_old_ones_are_forgotten() -> None:
    run = endpoints(1)
    for number in range(40):
        strike(run, 1, first=number)
        run.arrive(f"g{number}")
        run.end(f"g{number}")
    strike(run, BREAKER_STRIKES - 1, first=100)
    run.now += BREAKER_WINDOW_NS + SECOND_NS
    strike(run, BREAKER_STRIKES - 1, first=200)
    assert card_of(run, "c0").breaker == "closed"


def test_what_is_no_fault_of_the_card_does_not_count() -> None:
    run = endpoints(2)
    for number in range(20):
        run.arrive(f"t{number}")
        turn = run.base.state.turns[TurnId(f"t{number}")]
        if number % 2:
            run.tell(ev.DispatchFailed(turn.id, 1, "capacity", False, 0))
        else:
            run.cancel(f"t{number}")
            run.end(f"t{number}", status="cancelled", kv_tokens=0)
    run.down("c0")
    assert all(card.strikes == 0 for card in run.base.state.cards.values())


def test_a_lost_service_is_no_fault_of_its_cards() -> None:
    """After a restart every turn that ran ends as lost: no breaker opens for that."""
    run = endpoints(1)
    for number in range(8):
        run.arrive(f"t{number}")
    for number in range(8):
        run.end(f"t{number}", status="lost", kv_tokens=0)
    assert card_of(run, "c0").strikes == 0


def test_turns_that_wait_for_an_open_card_go_elsewhere() -> None:
    """One with its only KV on the card is computed again rather than wait out the pause."""
    run = Steps(pool_bytes_max=0)
    run.card("c0", slots=4, running_max=1, kv_tokens=400)
    run.arrive("t0", "home")
    run.end("t0")
    run.arrive("busy", "other")
    run.arrive("t1", "home", prompt_tokens=40, reuse_tokens=30)
    assert TurnId("t1") in card_of(run, "c0").bound
    run.card("c1")
    run.tell(ev.DispatchFailed(TurnId("busy"), 1, "engine_timeout", False, 0))
    assert alarms(run) == [("c0", 1)]
    assert (run.one(act.Dispatch).turn, run.one(act.Dispatch).card) == ("t1", "c1")


def test_a_probe_that_its_client_gives_up_lets_another_try() -> None:
    run = endpoints(1)
    strike(run, BREAKER_STRIKES)
    run.timer(BREAKER_PAUSE_NS)
    run.arrive("p0")
    run.arrive("p1")
    run.cancel("p0")
    run.end("p0", status="cancelled", kv_tokens=0)
    assert run.one(act.Dispatch).turn == "p1"
    assert card_of(run, "c0").breaker == "half_open"


def test_a_turn_that_its_client_held_up_is_no_strike_and_pays() -> None:
    """A slow reader is no fault of the card, and gets nothing for it."""
    run = endpoints(1)
    for number in range(BREAKER_STRIKES + 1):
        run.arrive(f"t{number}")
        run.tell(ev.TurnStarted(TurnId(f"t{number}"), 1, 20, 0))
        run.timer(POLICY.run_base_ns + 30 * POLICY.run_token_ns)
        assert run.one(act.CancelTurn)
        run.end(f"t{number}", status="held", out_tokens=9, kv_tokens=0)
        told, row = run.one(act.FailTurn), run.one(act.Settled)
        assert (told.reason, told.detail) == ("deadline_exceeded", "its answer was read too slowly")
        assert (row.status, row.out_tokens) == ("cancelled", 9)
    assert (card_of(run, "c0").breaker, card_of(run, "c0").strikes) == ("closed", 0)


def test_a_journal_that_stands_still_is_no_strike() -> None:
    """What waits for it is late by no fault of the card."""
    run = endpoints(1)
    run.arrive("t0")
    run.tell(ev.JournalStalled(on=True))
    run.timer(POLICY.run_base_ns + 30 * POLICY.run_token_ns)
    run.end("t0", status="cancelled", kv_tokens=0)
    assert run.one(act.Settled).status == "error"
    assert card_of(run, "c0").breaker == "closed"


def test_a_probe_with_a_first_token_lets_another_try() -> None:
    """Its client may read as slowly as it likes."""
    run = endpoints(1)
    strike(run, BREAKER_STRIKES)
    run.timer(BREAKER_PAUSE_NS)
    run.arrive("p0")
    run.arrive("p1")
    run.arrive("p2")
    assert not run.said(act.Dispatch)
    run.tell(ev.TurnStarted(TurnId("p0"), 1, 20, 0))
    assert run.one(act.Dispatch).turn == "p1", "one more, not all"
    run.fail("p0", out=1, retryable=False)
    assert card_of(run, "c0").breaker == "open"
    run.end("p1")
    assert card_of(run, "c0").breaker == "closed"


def test_a_card_that_restarts_is_tried_at_once() -> None:
    run = endpoints(1)
    strike(run, BREAKER_STRIKES)
    run.down()
    run.card("c0", kv="hints", slots=8, running_max=8)
    run.arrive("p0")
    run.arrive("p1")
    assert not run.said(act.Dispatch)
    assert card_of(run, "c0").probe == "p0"


def test_a_snapshot_keeps_breakers_and_the_budget() -> None:
    run = endpoints(2)
    strike(run, BREAKER_STRIKES * 2)
    saved = snapshot(run.base)
    assert snapshot(restore(saved)) == saved


# The retry budget.


def test_failures_f10_a_card_that_never_answers_costs_its_turns_and_nothing_more() -> None:
    """F10: four engines, one accepts and never answers; 20 sessions with prompts of 32K tokens."""
    run = endpoints(4)
    attempts: dict[str, list[str]] = {}
    for number in range(20):
        run.arrive(f"t{number}", prompt_tokens=PROMPT, limit_tokens=100)
        order = run.one(act.Dispatch)
        attempts.setdefault(order.turn, []).append(order.card)
    hung = [turn for turn, cards in attempts.items() if cards == ["c0"]]
    assert len(hung) == 5
    for turn in attempts:
        if turn not in hung:
            run.end(turn, prompt_tokens=PROMPT, kv_tokens=PROMPT)
    waited_ns = POLICY.run_base_ns + (PROMPT + 100) * POLICY.run_token_ns
    short_ns = POLICY.run_base_ns + (20 + 10) * POLICY.run_token_ns
    assert waited_ns > 100 * short_ns, "time-outs grow with the prompt"
    run.timer(waited_ns)
    for turn in hung:
        run.end(turn, status="cancelled", prompt_tokens=0, kv_tokens=0, exact=False)
        assert run.one(act.FailTurn).reason == "engine_timeout"
        assert not run.said(act.Dispatch), "its body was accepted: it is not sent again"
    assert card_of(run, "c0").breaker == "open", "the first silence is enough"
    for number in range(20, 40):
        run.arrive(f"t{number}", prompt_tokens=PROMPT, limit_tokens=100)
        assert run.one(act.Dispatch).card != "c0"


def test_failures_f10_failover_is_bounded_in_tokens_over_the_whole_pool() -> None:
    """F10: sent in all ≤ (1 + budget) × asked for, in tokens; 503 when the budget is gone."""
    floor, permille = 4 * PROMPT, 200
    run = endpoints(4, retry_tokens=floor, retry_permille=permille)
    sent = asked = 0
    ends: list[str] = []
    for number in range(60):
        turn = f"t{number}"
        run.arrive(turn, prompt_tokens=PROMPT, limit_tokens=100)
        if run.said(act.Refuse):
            assert run.one(act.Refuse).reason == "no_engine"
            run.timer(BREAKER_PAUSE_MAX_NS)
            continue
        asked += PROMPT
        while orders := run.said(act.Dispatch):
            sent += PROMPT
            failed = ev.DispatchFailed(TurnId(turn), orders[0].attempt, "engine_lost", True, 0)
            run.tell(failed)
        if TurnId(turn) in run.base.state.turns:
            run.timer(BREAKER_PAUSE_MAX_NS)  # it waits for a breaker, then tries once more
            while orders := run.said(act.Dispatch):
                sent += PROMPT
                failed = ev.DispatchFailed(TurnId(turn), orders[0].attempt, "engine_lost", True, 0)
                run.tell(failed)
        ends += [end.reason for end in run.said(act.FailTurn)]
        assert sent <= asked + floor + asked * permille // 1000
    assert ends.count("retry_budget_spent") > 20
    assert "engine_lost" in ends, "while there was some, turns had all their tries"
    assert sent > asked * 1.15


def test_a_card_without_room_costs_no_budget() -> None:
    run = endpoints(3, retry_tokens=1)
    run.arrive("t0")
    run.tell(ev.DispatchFailed(TurnId("t0"), 1, "capacity", True, 0))
    assert run.one(act.Dispatch).attempt == 2
    run.tell(ev.DispatchFailed(TurnId("t0"), 2, "engine_lost", True, 0))
    assert run.one(act.FailTurn).reason == "retry_budget_spent"


def test_turns_of_a_lost_card_share_the_budget_and_those_not_begun_need_none() -> None:
    run = Steps(retry_tokens=45, retry_permille=0)
    run.card("c0", slots=4, running_max=4, kv_tokens=200)
    for number in range(4):
        run.arrive(f"t{number}")
    run.arrive("waits")
    run.card("c1", slots=8, running_max=8, kv_tokens=400)
    run.down("c0")
    assert [end.reason for end in run.said(act.FailTurn)] == ["retry_budget_spent"] * 2
    assert sorted(order.turn for order in run.said(act.Dispatch)) == ["t0", "t1"]


@pytest.mark.parametrize(("delivered", "resumed"), [(7, True), (0, False)])
def test_failures_f10_a_late_break_of_an_endpoint_is_not_computed_twice(
    delivered: int, *, resumed: bool
) -> None:
    """F10: nobody knows whether its server still computes; what was delivered goes on (F16)."""
    run = endpoints(2)
    run.arrive("t0", resumable=True)
    run.tell(ev.TokensEmitted(TurnId("t0"), 1, delivered))
    run.now += RESEND_FAST_NS + 1
    run.tell(ev.DispatchFailed(TurnId("t0"), 1, "engine_lost", True, delivered))
    assert bool(run.said(act.Dispatch)) == resumed
    if resumed:
        assert run.one(act.Dispatch).resume_tokens == delivered
        assert run.base.state.retry_owed == 27_000, "prompt and what is sent with it"
    else:
        assert run.one(act.FailTurn).reason == "engine_lost"
    own = Steps()
    own.card("c0")
    own.card("c1")
    own.arrive("t0")
    own.now += RESEND_FAST_NS + 1
    own.tell(ev.DispatchFailed(TurnId("t0"), 1, "engine_lost", True, 0))
    assert own.one(act.Dispatch).attempt == 2, "a card of our own is gone with its work"
