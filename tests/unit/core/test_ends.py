"""How turns and sessions end: cancels in every state, failures, time-outs, closing, expiry."""

from __future__ import annotations

import pytest

from bedplate.core import actions as act
from bedplate.core import events as ev
from bedplate.core.ids import BranchId, SessionId, TurnId
from bedplate.core.limits import DISPATCH_ATTEMPTS_MAX
from bedplate.core.units import MINUTE_NS, SECOND_NS
from tests.unit.core.steps import Steps


def occupied(core: Steps) -> None:
    """One slot, taken by a long turn."""
    core.card(slots=1, running_max=1)
    core.arrive("long", limit_tokens=100)


def test_cancel_while_waiting_settles_at_once_and_frees_the_place() -> None:
    """F09 (d): the queued item is gone."""
    core = Steps()
    occupied(core)
    core.arrive("a")
    core.cancel("a")
    row = core.one(act.Settled)
    assert (row.turn, row.status, row.attempts, row.out_tokens) == ("a", "cancelled", 0, 0)
    assert core.said(act.CancelTurn) == []
    core.end("long", kv_tokens=0)
    core.dropped(core.one(act.DropKv))
    assert core.said(act.Dispatch) == []


def test_cancel_behind_another_turn_of_its_branch() -> None:
    core = Steps()
    core.card()
    core.arrive("a", "s")
    core.arrive("b", "s")
    core.arrive("c", "s")
    core.cancel("b")
    assert core.one(act.Settled).turn == "b"
    core.end("a")
    assert core.one(act.Dispatch).turn == "c"


def test_cancel_while_room_is_made() -> None:
    core = Steps()
    core.card(slots=1, running_max=1)
    core.keep("a", "s")
    core.arrive("b")
    drop = core.one(act.DropKv)
    core.cancel("b")
    assert core.one(act.Settled).status == "cancelled"
    core.dropped(drop)
    assert core.last == () or core.said(act.Dispatch) == []
    core.arrive("c")
    assert core.one(act.Dispatch).turn == "c"


def test_cancel_while_loading_ends_with_the_load() -> None:
    core = Steps()
    core.card(slots=1, running_max=1)
    core.keep("a", "s")
    core.arrive("b")
    core.dropped(core.one(act.DropKv))
    core.end("b", kv_tokens=0)
    core.dropped(core.one(act.DropKv))
    core.arrive("c", "s", prompt_tokens=50, reuse_tokens=30)
    load = core.one(act.LoadKv)
    core.cancel("c")
    assert core.said(act.Dispatch) == []
    core.loaded(load)
    assert core.one(act.Settled).status == "cancelled"
    assert core.said(act.Dispatch) == []
    core.arrive("d", "s", prompt_tokens=50, reuse_tokens=30)
    assert core.one(act.Dispatch).turn == "d"


def test_cancel_while_running_asks_the_engine_and_bills_what_came_out_once() -> None:
    """F08, F09 (c): the slot is free again and partial tokens are billed once."""
    core = Steps()
    core.card()
    core.arrive("a", "s")
    core.tell(ev.TokensEmitted(TurnId("a"), 1, 4))
    core.cancel("a")
    assert core.one(act.CancelTurn).attempt == 1
    assert core.said(act.Settled) == []
    core.cancel("a")
    assert core.said(act.CancelTurn) == []
    core.end("a", status="cancelled", out_tokens=6, kv_tokens=26)
    row = core.one(act.Settled)
    assert (row.status, row.out_tokens, row.attempts) == ("cancelled", 6, 1)
    core.dropped(core.one(act.DropKv))
    core.end("a", status="cancelled")
    assert core.last == ()
    core.arrive("b")
    assert len(core.said(act.Dispatch)) == 1


def test_cancel_of_a_finished_or_unknown_turn_changes_nothing() -> None:
    core = Steps()
    core.card()
    core.keep("a", "s")
    core.cancel("a")
    core.cancel("nobody")
    assert core.last == ()


@pytest.mark.parametrize(
    ("reason", "code"), [("deadline", "deadline_exceeded"), ("shutdown", "draining")]
)
def test_other_cancels_are_told_to_the_client(reason: str, code: str) -> None:
    core = Steps()
    occupied(core)
    core.arrive("a")
    core.cancel("a", reason)
    assert core.one(act.FailTurn).reason == code


def test_lost_card_before_any_token_runs_elsewhere() -> None:
    core = Steps()
    core.card("c0")
    core.arrive("a")
    core.card("c1")
    core.down("c0")
    order = core.one(act.Dispatch)
    assert (order.card, order.attempt, order.resume_tokens) == ("c1", 2, 0)
    core.end("a", attempt=1)
    assert core.last == (), "the first attempt is stale"
    core.end("a", attempt=2)
    row = core.one(act.Settled)
    assert (row.attempts, row.card, row.status) == (2, "c1", "stop")


def test_lost_card_after_tokens_is_an_error_unless_resumable() -> None:
    """F16: nothing is sent twice and no success is made up."""
    core = Steps()
    core.card("c0", slots=2, running_max=2)
    core.arrive("a")
    core.arrive("b", resumable=True)
    for turn in ("a", "b"):
        core.tell(ev.TokensEmitted(TurnId(turn), 1, 4))
    core.card("c1")
    core.down("c0")
    failure = core.one(act.FailTurn)
    assert (failure.turn, failure.reason) == ("a", "engine_lost")
    order = core.one(act.Dispatch)
    assert (order.turn, order.attempt, order.resume_tokens) == ("b", 2, 4)
    assert order.limit_tokens == 10, "what was delivered counts"


def test_attempts_are_few() -> None:
    """F10: failover does not multiply."""
    core = Steps()
    core.card(slots=4, running_max=4)
    core.arrive("a")
    for attempt in range(1, DISPATCH_ATTEMPTS_MAX + 1):
        assert core.one(act.Dispatch).attempt == attempt
        core.fail("a", attempt=attempt)
    assert core.said(act.Dispatch) == []
    assert core.one(act.FailTurn).reason == "engine_error"
    assert core.one(act.Settled).attempts == DISPATCH_ATTEMPTS_MAX


def test_failure_that_is_not_retryable_ends_the_turn() -> None:
    core = Steps()
    core.card()
    core.arrive("a")
    core.fail("a", retryable=False)
    assert core.one(act.FailTurn).reason == "engine_error"
    assert core.said(act.Dispatch) == []
    assert core.one(act.DropKv).slot == 0


def test_session_of_a_lost_card_comes_back_from_the_pool() -> None:
    core = Steps()
    core.card("c0")
    entry = core.keep("a", "s")
    core.card("c1")
    core.down("c0")
    core.arrive("b", "s", prompt_tokens=50, reuse_tokens=30)
    load = core.one(act.LoadKv)
    assert (load.card, load.entry) == ("c1", entry)


def test_restart_without_a_word_loses_what_the_card_held() -> None:
    core = Steps(pool_bytes_max=0)
    core.card()
    core.arrive("a", "s")
    core.end("a")
    core.card()
    core.arrive("b", "s", prompt_tokens=50, reuse_tokens=30)
    assert core.one(act.Dispatch).expect_cached_tokens == 0


def test_hung_engine_is_cancelled_and_the_client_told() -> None:
    core = Steps()
    core.card()
    core.arrive("a")
    core.timer(10 * SECOND_NS + 29 * SECOND_NS)
    assert core.said(act.CancelTurn) == []
    core.timer(SECOND_NS)
    assert core.one(act.CancelTurn).turn == "a"
    core.end("a", status="cancelled", out_tokens=0, kv_tokens=0)
    assert core.one(act.FailTurn).reason == "engine_timeout"


def test_closing_drops_everything_everywhere() -> None:
    core = Steps()
    core.card(slots=4, running_max=4)
    entry = core.keep("a", "s")
    core.arrive("b", "s", branch=BranchId(1))
    core.close("s")
    assert core.one(act.CancelTurn).turn == "b"
    assert core.said(act.SessionEnded) == []
    core.end("b", status="cancelled", kv_tokens=0)
    assert core.said(act.Settled)[0].status == "cancelled", "its client did it"
    gone = core.said(act.SessionEnded)
    assert [end.session for end in gone] == ["s"]
    assert core.base.state.sessions == {}
    assert (
        entry not in core.base.state.entries or core.base.state.entries[entry].state == "dropping"
    )


def test_closing_while_a_store_is_under_way_deletes_what_it_made() -> None:
    core = Steps()
    core.card()
    core.arrive("a", "s")
    core.end("a")
    store = core.one(act.StoreKv)
    core.close("s")
    assert core.said(act.DropKv) == []
    core.stored(store)
    assert core.one(act.DropEntry).entry == store.entry
    assert len(core.said(act.DropKv)) == 1
    assert core.one(act.SessionEnded).reason == "closed"


def test_silent_sessions_end_and_leave_nothing() -> None:
    """F22: created - ended comes to 0, memory is flat."""
    core = Steps()
    core.card(slots=4, running_max=4, kv_tokens=1000)
    for number in range(20):
        core.arrive(f"a{number}", f"s{number}")
        for drop in core.said(act.DropKv):
            core.dropped(drop)
        assert core.one(act.Dispatch).turn == f"a{number}"
        core.end(f"a{number}")
        core.stored(core.one(act.StoreKv))
    assert len(core.base.state.sessions) == 20
    ended = 0
    for _ in range(3):
        core.timer(10 * MINUTE_NS)
        ended += len(core.said(act.SessionEnded))
        for drop in list(core.said(act.DropKv)):
            core.dropped(drop)
    state = core.base.state
    assert ended == 20
    assert (state.sessions, state.turns, state.closing) == ({}, {}, {})
    for entry in list(state.entries):
        core.tell(ev.EntryDropped(entry))
    assert state.pool_bytes == 0
    assert all(card.used_blocks == 0 for card in state.cards.values())


def test_reopened_session_starts_from_nothing() -> None:
    core = Steps()
    core.card()
    core.keep("a", "s")
    core.close("s")
    for drop in core.said(act.DropKv):
        core.dropped(drop)
    core.arrive("b", "s")
    assert core.one(act.Dispatch).expect_cached_tokens == 0


def test_rest_of_kv_rent_is_settled_once() -> None:
    core = Steps()
    core.card()
    core.keep("a", "s")
    core.now += 5 * SECOND_NS
    core.close("s")
    row = core.one(act.Settled)
    assert (row.turn, row.session, row.prompt_tokens) == ("", SessionId("s"), 0)
    assert row.kv_pool_token_ns == 30 * 5 * SECOND_NS
    assert row.kv_card_token_ns >= 30 * 5 * SECOND_NS
    assert (row.tenant, row.model, row.card, row.status) == ("t", "m", "", "closed")
    assert (row.tool_ns, row.attempts, row.exact) == (5 * SECOND_NS, 0, True)
