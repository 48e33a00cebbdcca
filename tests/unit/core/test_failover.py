"""Which card a turn is tried on again, and when it is not tried any more (F10)."""

from __future__ import annotations

from bedplate.core import actions as act
from bedplate.core import events as ev
from bedplate.core.ids import TurnId
from bedplate.core.limits import DISPATCH_ATTEMPTS_MAX
from bedplate.core.snapshot import restore, snapshot
from bedplate.core.units import SECOND_NS
from tests.unit.core.steps import LANE, Steps


def world(cards: int) -> Steps:
    core = Steps()
    for at in range(cards):
        core.card(f"c{at}", kv="hints", slots=4, running_max=4)
    return core


def fail(core: Steps, turn: str, code: str) -> None:
    """The engine gives the turn's running attempt up."""
    attempt = core.base.state.turns[TurnId(turn)].attempt
    core.tell(ev.DispatchFailed(TurnId(turn), attempt, code, True, 0))


def test_a_card_that_failed_a_turn_is_passed_over_though_it_has_the_least_load() -> None:
    core = world(3)
    core.arrive("a")
    tried = [core.one(act.Dispatch).card]
    for other in ("b", "c", "d", "e"):
        core.arrive(other)
    for _ in range(2):
        fail(core, "a", "engine_lost")
        tried.append(core.one(act.Dispatch).card)
    assert sorted(tried) == ["c0", "c1", "c2"]
    fail(core, "a", "engine_lost")
    assert core.one(act.FailTurn).reason == "engine_lost"
    assert len(tried) == DISPATCH_ATTEMPTS_MAX


def test_a_lone_card_that_broke_off_is_tried_again() -> None:
    core = world(1)
    core.arrive("a")
    fail(core, "a", "engine_lost")
    assert core.one(act.Dispatch).attempt == 2


def test_a_full_card_is_asked_once_and_its_client_told_when_no_other_is_left() -> None:
    core = world(2)
    core.arrive("a")
    first = core.one(act.Dispatch).card
    fail(core, "a", "capacity")
    assert core.one(act.Dispatch).card != first
    fail(core, "a", "no_engine")
    assert core.one(act.FailTurn).reason == "no_engine"
    assert core.one(act.Settled).attempts == 2


def test_a_card_that_is_down_or_too_small_is_no_other_card() -> None:
    core = world(2)
    core.card("c2", kv="hints", context_tokens=20)
    core.arrive("a")
    failed = core.one(act.Dispatch).card
    core.down("c1" if failed == "c0" else "c0")
    fail(core, "a", "capacity")
    assert core.one(act.FailTurn).reason == "capacity"


def test_a_turn_waits_for_a_busy_card_rather_than_go_back_to_the_broken_one() -> None:
    core = world(1)
    core.card("c1", kv="hints", slots=1, running_max=1)
    core.arrive("b")
    core.arrive("a")
    cards = {turn.id: turn.card for turn in core.base.state.turns.values()}
    assert cards == {"b": "c0", "a": "c1"}
    fail(core, "b", "engine_lost")
    assert core.said(act.Dispatch) == []
    core.base = restore(snapshot(core.base))
    core.end("a")
    assert core.one(act.Dispatch).card == "c1"


PATIENT = LANE._replace(wait_max_ns=60 * SECOND_NS, refuse_ns=15 * SECOND_NS)


def test_a_turn_waits_for_a_lone_card_to_come_back() -> None:
    core = Steps(lanes=(PATIENT, PATIENT, LANE))
    core.card()
    core.arrive("a")
    core.down()
    assert not core.said(act.FailTurn)
    core.timer(14 * SECOND_NS)
    core.card()
    assert core.one(act.Dispatch).attempt == 2


def test_a_card_may_be_lost_in_the_step_in_which_a_turn_has_waited_for_long_enough() -> None:
    core = Steps(lanes=(PATIENT, PATIENT, LANE))
    core.card(running_max=1)
    core.arrive("runs", lane=0)
    core.arrive("waits", lane=1)
    core.now += 60 * SECOND_NS + 1  # no timer has fired yet
    core.down()
    assert core.one(act.Refuse).turn == "waits"


def test_where_no_card_comes_back_a_turn_ends_after_what_a_new_session_would_wait() -> None:
    core = Steps(lanes=(PATIENT, PATIENT, LANE))
    core.card(running_max=1)
    core.arrive("ran")
    core.arrive("waits", lane=1)
    core.arrive("batch", lane=2)
    core.now += 20 * SECOND_NS  # what it waited while the card was up is not held against it
    core.tell(ev.TokensEmitted(TurnId("ran"), 1, 0))
    core.down()
    core.timer(15 * SECOND_NS - 1)
    assert not core.said(act.FailTurn)
    assert not core.said(act.Refuse)
    core.timer(1)
    assert [(end.turn, end.reason) for end in core.said(act.FailTurn)] == [("ran", "no_engine")]
    refused = core.one(act.Refuse)
    assert (refused.turn, refused.reason) == ("waits", "no_engine")
    assert 0 < refused.retry_after_ns <= 15 * SECOND_NS
    core.timer(60 * SECOND_NS)
    assert core.one(act.Refuse).turn == "batch", "its lane waits as long as it may"


def test_a_card_that_comes_and_goes_gives_what_waits_its_time_anew() -> None:
    core = Steps(lanes=(PATIENT, PATIENT, LANE))
    core.card()
    core.arrive("a")
    for _ in range(2):
        core.down()
        core.timer(10 * SECOND_NS)
        core.card()
        assert core.one(act.Dispatch)
