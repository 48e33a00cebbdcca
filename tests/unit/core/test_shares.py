"""Reserves: kept from running turns of others, reclaimed from idle KV, lent and taken back."""

from __future__ import annotations

from typing import Any

import pytest

from bedplate.core import actions as act
from bedplate.core import events as ev
from bedplate.core import snapshot
from bedplate.core.ids import ModelId, SessionId, TenantId, TurnId
from bedplate.core.limits import TenantPolicy
from bedplate.core.units import SECOND_NS
from bedplate.core.view import why
from tests.unit.core.steps import FREE, LANE, Steps

OTHER = TenantId("o")


def kept(tenant: str = "t", **limits: Any) -> TenantPolicy:
    """Limits of one tenant."""
    return FREE._replace(tenant=TenantId(tenant), **limits)


def run(*tenants: TenantPolicy, tokens: int = 120, open_door: bool = False) -> Steps:
    """A core with one roomy card of so many tokens; a turn of `Steps` takes 30.

    With an open door admission holds nobody up.
    """
    lane = LANE._replace(admit_permille=9_000) if open_door else LANE
    found = Steps(tenants=tenants, pool_bytes_max=0, lanes=(lane, lane, lane))
    found.card(slots=10, running_max=10, kv_tokens=tokens, context_tokens=tokens)
    return found


def running(steps: Steps) -> list[str]:
    """Turns on cards."""
    return [turn.id for turn in steps.base.state.turns.values() if turn.slot is not None]


def holders(steps: Steps, card: str = "c0") -> list[str]:
    """Sessions that have KV on a card."""
    slots = steps.base.state.cards[card].slots  # type: ignore[index]
    return [slot.branch.session.id for slot in slots if slot.branch is not None]


def idle(steps: Steps, turn: str, tenant: str = "o", **changes: Any) -> None:
    """Run one turn to its end; its KV stays on the card."""
    steps.arrive(turn, tenant=TenantId(tenant), **changes)
    steps.end(turn)


# Running turns.


def test_running_turns_of_others_leave_the_reserve_free_although_its_tenant_never_called() -> None:
    steps = run(kept(reserve_tokens=60))
    for number in range(3):
        steps.arrive(f"o{number}", tenant=OTHER)
    assert running(steps) == ["o0", "o1"]
    steps.arrive("t0")
    steps.arrive("t1")
    assert running(steps) == ["o0", "o1", "t0", "t1"]
    steps.end("o0")
    steps.timer(3 * SECOND_NS)
    steps.dropped(steps.one(act.DropKv))
    assert set(running(steps)) == {"o1", "t0", "t1", "o2"}


def test_without_a_reserve_all_of_the_card_is_anyones() -> None:
    steps = run()
    for number in range(4):
        steps.arrive(f"o{number}", tenant=OTHER)
    assert len(running(steps)) == 4


def test_a_turn_that_reserves_leave_no_room_says_so_and_holds_nobody_up() -> None:
    steps = run(kept(reserve_tokens=100))
    steps.arrive("o0", tenant=OTHER)
    assert running(steps) == []
    assert "reserves of other tenants" in why(steps.base, TurnId("o0"))
    for number in range(3):
        steps.arrive(f"t{number}")
    assert running(steps) == ["t0", "t1", "t2"]


def test_what_is_lent_is_used_by_others_while_its_tenant_asks_for_nothing() -> None:
    steps = run(kept(reserve_tokens=60, lend_tokens=60))
    for number in range(4):
        steps.arrive(f"o{number}", tenant=OTHER)
    assert len(running(steps)) == 4


def test_what_was_lent_is_back_by_the_end_of_the_running_turns_at_the_latest() -> None:
    steps = run(kept(reserve_tokens=60, lend_tokens=60))
    for number in range(8):
        steps.arrive(f"o{number}", tenant=OTHER)
    steps.arrive("t0")
    steps.arrive("t1")
    assert running(steps) == ["o0", "o1", "o2", "o3"]
    for number in range(4):
        steps.end(f"o{number}")
        for drop in steps.said(act.DropKv):
            steps.dropped(drop)
        if {"t0", "t1"} <= set(running(steps)):
            break
    else:
        pytest.fail("the lent room was not given back")
    assert number <= 1, "the first turns that end make room for it, not for more of the borrower"


def test_a_part_that_is_lent_leaves_the_rest() -> None:
    steps = run(kept(reserve_tokens=60, lend_tokens=30))
    for number in range(4):
        steps.arrive(f"o{number}", tenant=OTHER)
    assert len(running(steps)) == 3


def test_a_reserve_is_of_every_model() -> None:
    steps = run(kept(reserve_tokens=60))
    steps.card("n", model=ModelId("n"), slots=10, running_max=10, kv_tokens=90, context_tokens=90)
    for number in range(3):
        steps.arrive(f"o{number}", tenant=OTHER, model=ModelId("n"))
    assert running(steps) == ["o0"]


def test_a_lost_card_takes_no_reserve_along() -> None:
    steps = run(kept(reserve_tokens=60), tokens=60, open_door=True)
    steps.card("c1", slots=10, running_max=10, kv_tokens=60, context_tokens=60)
    steps.arrive("o0", tenant=OTHER)
    steps.arrive("o1", tenant=OTHER)
    assert len(running(steps)) == 2
    steps.down("c1")
    steps.arrive("o2", tenant=OTHER)
    steps.end("o0", attempt=1)
    assert "o2" not in running(steps), "one card is left, and all of it is kept"
    steps.card("c1", slots=10, running_max=10, kv_tokens=60, context_tokens=60)
    assert "o2" in running(steps)


# Scattered room.


def test_a_card_is_kept_for_a_turn_within_its_reserve_that_found_no_room() -> None:
    """Four turns of a tenant on each of two cards, two of another on each: no card has 50 free."""
    steps = Steps(tenants=(kept(reserve_tokens=50),), pool_bytes_max=0)
    for name in ("c0", "c1"):
        steps.card(name, slots=10, running_max=10, kv_tokens=60, context_tokens=60)
    for number in range(2):
        steps.arrive(f"o{number}", tenant=OTHER)
    steps.arrive("t0", prompt_tokens=40)
    assert running(steps) == ["o0", "o1"]
    for number in range(2, 6):
        steps.arrive(f"o{number}", tenant=OTHER)
    steps.end("o0")
    steps.end("o1")
    for drop in steps.said(act.DropKv):
        steps.dropped(drop)
    assert "t0" in running(steps)
    assert all(card.kept_for is None for card in steps.base.state.cards.values())


def test_a_turn_that_stops_waiting_gives_its_card_back() -> None:
    steps = Steps(tenants=(kept(reserve_tokens=50),), pool_bytes_max=0)
    steps.card(slots=10, running_max=10, kv_tokens=60, context_tokens=60)
    steps.tell(ev.PolicyChanged(steps.policy._replace(tenants=())))
    steps.arrive("o0", tenant=OTHER)
    steps.tell(ev.PolicyChanged(steps.policy))
    steps.arrive("t0", prompt_tokens=40)
    card = steps.base.state.cards["c0"]  # type: ignore[index]
    assert card.kept_for is steps.base.state.turns["t0"]  # type: ignore[index]
    steps.cancel("t0")
    assert card.kept_for is None


def full_and_kept() -> Steps:
    """A card with 10 of 100 tokens free, kept for "t0" of 30: its tenant runs 20 of its 50.

    Another card has much room, for short contexts only.
    """
    steps = run(kept(reserve_tokens=50), tokens=100, open_door=True)
    steps.card("c1", kv_tokens=1_000, context_tokens=9)
    steps.tell(ev.PolicyChanged(steps.policy._replace(tenants=())))
    steps.arrive("o0", tenant=OTHER, prompt_tokens=40)
    steps.arrive("o1", tenant=OTHER, prompt_tokens=10)
    steps.tell(ev.PolicyChanged(steps.policy))
    steps.arrive("runs", prompt_tokens=10)
    steps.arrive("t0", prompt_tokens=29, limit_tokens=1)
    card = steps.base.state.cards["c0"]  # type: ignore[index]
    assert card.kept_for is steps.base.state.turns["t0"]  # type: ignore[index]
    return steps


def leaves(steps: Steps, turn: str) -> None:
    """End a turn that leaves nothing on its card."""
    steps.end(turn, kv_tokens=0)
    for drop in steps.said(act.DropKv):
        steps.dropped(drop)


def test_only_the_first_of_a_line_keeps_a_card() -> None:
    steps = full_and_kept()
    steps.arrive("more", prompt_tokens=1, limit_tokens=39)
    leaves(steps, "o0")
    assert "more" in running(steps)


def test_a_card_is_kept_only_while_its_turn_is_within_the_reserve() -> None:
    steps = full_and_kept()
    steps.arrive("t1", lane=0, prompt_tokens=9, limit_tokens=1)
    assert "t1" in running(steps)
    steps.arrive("o2", tenant=OTHER, prompt_tokens=9, limit_tokens=1)
    leaves(steps, "o1")
    assert "o2" in running(steps)


# Idle KV.


def test_idle_kv_goes_first_where_a_tenant_is_the_most_above_its_reserve() -> None:
    """The least recently used is of a tenant that holds little; it stays."""
    steps = run(kept(reserve_tokens=10), kept("x", reserve_tokens=10), open_door=True)
    idle(steps, "x0", "x")
    for number in range(3):
        idle(steps, f"o{number}")
    steps.arrive("t0")
    assert [drop.slot for drop in steps.said(act.DropKv)] == [1]


def test_idle_kv_within_a_reserve_does_not_go_for_others() -> None:
    steps = run(kept("x", reserve_tokens=60), tokens=90, open_door=True)
    idle(steps, "x0", "x")
    idle(steps, "x1", "x")
    idle(steps, "o0")
    steps.arrive("o1", tenant=OTHER)
    steps.dropped(steps.one(act.DropKv))
    assert holders(steps) == ["s-x0", "s-x1", "s-o1"], "the tenant without one gave up its own"


def test_idle_kv_above_a_reserve_goes_before_that_within() -> None:
    steps = run(kept("x", reserve_tokens=60), tokens=120, open_door=True)
    for number in range(4):
        idle(steps, f"x{number}", "x")
    steps.arrive("o0", tenant=OTHER)
    assert len(steps.said(act.DropKv)) == 1
    steps.dropped(steps.one(act.DropKv))
    steps.arrive("o1", tenant=OTHER)
    assert len(steps.said(act.DropKv)) == 1
    steps.dropped(steps.one(act.DropKv))
    steps.arrive("o2", tenant=OTHER)
    assert not steps.said(act.DropKv)
    assert holders(steps).count("s-x2") + holders(steps).count("s-x3") == 2


def test_a_turn_within_its_reserve_takes_from_other_reserves_what_no_borrower_holds() -> None:
    """Reserves of more than there is: nobody is above his, and the turn must run."""
    steps = run(kept(reserve_tokens=60), kept("x", reserve_tokens=90), tokens=90)
    for number in range(3):
        idle(steps, f"x{number}", "x")
    steps.arrive("t0")
    assert len(steps.said(act.DropKv)) == 1
    steps.dropped(steps.one(act.DropKv))
    assert running(steps) == ["t0"]


def test_a_turn_within_its_reserve_waits_for_who_is_above_rather_than_take_of_reserves() -> None:
    steps = run(kept(reserve_tokens=30), kept("x", reserve_tokens=60, lend_tokens=60), tokens=120)
    idle(steps, "x0", "x")
    idle(steps, "x1", "x")
    steps.arrive("o0", tenant=OTHER)
    steps.tell(ev.PolicyChanged(steps.policy._replace(tenants=())))
    steps.arrive("o1", tenant=OTHER)
    steps.tell(ev.PolicyChanged(steps.policy))
    assert set(running(steps)) == {"o0", "o1"}
    steps.arrive("t0")
    assert not steps.said(act.DropKv)
    steps.end("o0")
    assert [drop.slot for drop in steps.said(act.DropKv)] == [2]


# Admission.


def test_what_is_kept_of_a_reserve_counts_as_admitted() -> None:
    steps = run(kept(reserve_tokens=60))
    for number in range(3):
        steps.arrive(f"o{number}", tenant=OTHER)
    state = steps.base.state
    assert state.sessions[SessionId("s-o1")].admitted
    assert not state.sessions[SessionId("s-o2")].admitted
    steps.arrive("t0")
    assert state.sessions[SessionId("s-t0")].admitted


def test_sessions_above_their_reserve_step_back_at_once_for_one_within_its_own() -> None:
    """Without a reserve the leases of idle sessions hold for two seconds."""
    for reserve, admitted in ((0, False), (30, True)):
        steps = run(kept(reserve_tokens=reserve, lend_tokens=reserve))
        for number in range(4):
            idle(steps, f"o{number}")
        steps.arrive("t0")
        assert steps.base.state.sessions[SessionId("s-t0")].admitted is admitted


def test_a_session_within_its_reserve_does_not_step_back_for_others() -> None:
    steps = run(kept("x", reserve_tokens=60), tokens=90)
    idle(steps, "x0", "x")
    idle(steps, "x1", "x")
    steps.arrive("o0", tenant=OTHER)
    steps.arrive("o1", tenant=OTHER)
    steps.timer(3 * SECOND_NS)
    state = steps.base.state
    assert state.sessions[SessionId("s-x0")].admitted
    assert state.sessions[SessionId("s-x1")].admitted
    assert not state.sessions[SessionId("s-o1")].admitted


# In the pool.


def test_failures_f20_a_copy_within_a_reserve_of_the_pool_does_not_go_for_others() -> None:
    """F20: never another tenant below its reserve."""
    steps = Steps(tenants=(kept("x", pool_reserve_bytes=60_000),), pool_bytes_max=90_000)
    steps.card(slots=10, running_max=10, kv_tokens=2_000, context_tokens=2_000)
    steps.keep("x0", tenant=TenantId("x"))
    steps.keep("x1", tenant=TenantId("x"))
    steps.keep("o0", tenant=OTHER)
    steps.arrive("o1", tenant=OTHER)
    steps.end("o1")
    assert len(steps.said(act.DropEntry)) == 1
    owners = [e.branch.session.id for e in steps.base.state.entries.values() if e.branch]
    assert owners == ["s-x0", "s-x1"]


def test_reserves_survive_a_snapshot() -> None:
    steps = run(kept(reserve_tokens=60, lend_tokens=30))
    idle(steps, "t0", "t")
    steps.arrive("o0", tenant=OTHER)
    again = snapshot.restore(snapshot.snapshot(steps.base))
    share = again.state.groups[ModelId("m")].shares[TenantId("t")]
    assert (share.held_blocks, share.busy_blocks, share.reserve_blocks) == (3, 0, 6)
    assert snapshot.snapshot(again) == snapshot.snapshot(steps.base)


# Water levels.


def test_a_tenant_s_level_is_that_of_its_running_turns_in_its_limit_with_hysteresis() -> None:
    """Levels at 50 and 90 %: one that was reached is left 5 points below it only."""
    steps = run(kept(card_tokens_max=60), tokens=600)
    steps.arrive("a", prompt_tokens=20)
    assert steps.one(act.Alarm) == act.Alarm("tenant_kv", "t", 1)
    steps.arrive("b", prompt_tokens=20)
    assert steps.one(act.Alarm) == act.Alarm("tenant_kv", "t", 2)
    steps.end("a")
    assert steps.one(act.Alarm) == act.Alarm("tenant_kv", "t", 1)
    steps.tell(ev.PolicyChanged(steps.policy._replace(tenants=(kept(card_tokens_max=62),))))
    assert not steps.said(act.Alarm), "30 of 60 still: the limit is in whole blocks"
    steps.tell(ev.PolicyChanged(steps.policy._replace(tenants=(kept(card_tokens_max=66),))))
    assert not steps.said(act.Alarm)
    steps.tell(ev.PolicyChanged(steps.policy._replace(tenants=(kept(card_tokens_max=70),))))
    assert steps.one(act.Alarm) == act.Alarm("tenant_kv", "t", 0)


def test_kv_is_not_kept_for_a_turn_that_a_reserve_shuts_out_of_its_card() -> None:
    """Its own KV would keep the other's turn out, and the other's reserve keeps it out itself."""
    steps = run(kept(reserve_tokens=50), open_door=True)
    idle(steps, "o1", session="o")
    steps.arrive("t1", "t", prompt_tokens=70)
    steps.end("t1", prompt_tokens=70, kv_tokens=80)
    steps.arrive("o2", "o", tenant=OTHER, prompt_tokens=60, reuse_tokens=30)
    assert running(steps) == []
    steps.arrive("t2", "t", prompt_tokens=90, reuse_tokens=80)
    assert len(steps.said(act.DropKv)) == 1
    assert running(steps) == ["t2"]
    assert holders(steps) == ["t"]
