"""Who runs next: lanes, tenants in turn, arrival; what bounds a card and a tenant."""

from __future__ import annotations

from typing import Any

import pytest

from bedplate.core import actions as act
from bedplate.core import events as ev
from bedplate.core import view
from bedplate.core.card import PROMPT_NS
from bedplate.core.costs import FIRST_TOKEN_NS
from bedplate.core.ids import BranchId, ModelId, TenantId, TurnId
from bedplate.core.limits import PASSED_OVER_MAX
from bedplate.core.order import PATIENCE
from bedplate.core.placement import CARDS_TRIED_MAX
from tests.unit.core.steps import FREE, LANE, Steps

BUDGET = PROMPT_NS // FIRST_TOKEN_NS


def served(core: Steps, first: str) -> list[str]:
    """End turns one after another, dropping what they leave; return the order that followed."""
    order: list[str] = []
    turn = first
    while True:
        core.end(turn, kv_tokens=0)
        for drop in core.said(act.DropKv):
            core.dropped(drop)
        started = core.said(act.Dispatch)
        if not started:
            return order
        turn = started[0].turn
        order.append(turn)


def one_slot(**policy: object) -> Steps:
    core = Steps(**policy)
    core.card(slots=1, running_max=1)
    core.arrive("first")
    return core


def test_higher_lanes_first_then_arrival() -> None:
    core = one_slot()
    for turn, lane in (("b1", 2), ("s1", 1), ("i1", 0), ("b2", 2), ("i2", 0)):
        core.arrive(turn, lane=lane)
    assert served(core, "first") == ["i1", "i2", "s1", "b1", "b2"]


def test_tenants_take_turns_inside_a_lane() -> None:
    core = one_slot(fair_quantum_ns=0)
    for turn in ("a1", "a2", "a3"):
        core.arrive(turn, tenant=TenantId("a"))
    for turn in ("b1", "b2"):
        core.arrive(turn, tenant=TenantId("b"))
    core.arrive("c1", tenant=TenantId("c"))
    assert served(core, "first") == ["a1", "b1", "c1", "a2", "b2", "a3"]


def test_same_instant_is_ordered_by_arrival() -> None:
    core = one_slot()
    for turn in ("z", "y", "x"):
        core.arrive(turn)
    assert served(core, "first") == ["z", "y", "x"]


def test_card_runs_no_more_than_it_may() -> None:
    core = Steps()
    core.card(slots=3, running_max=2)
    started = []
    for turn in ("a", "b", "c"):
        core.arrive(turn)
        started += [order.turn for order in core.said(act.Dispatch)]
    assert started == ["a", "b"]


def test_tenant_runs_no_more_than_it_may_and_blocks_nobody() -> None:
    core = Steps(tenants=(FREE._replace(tenant=TenantId("few"), running_max=1),))
    core.card(slots=3, running_max=3)
    started = []
    for turn, tenant in (("a", "few"), ("b", "few"), ("c", "many")):
        core.arrive(turn, tenant=TenantId(tenant))
        started += [order.turn for order in core.said(act.Dispatch)]
    assert started == ["a", "c"]
    core.end("a", kv_tokens=0)
    assert [order.turn for order in core.said(act.Dispatch)] == ["b"]


def test_reservation_is_prompt_and_limit_in_blocks() -> None:
    core = Steps()
    core.card(slots=3, running_max=3)
    core.arrive("a", prompt_tokens=91, limit_tokens=10)
    assert len(core.said(act.Dispatch)) == 1, "11 of 20 blocks"
    core.arrive("b", prompt_tokens=81, limit_tokens=10)
    assert core.said(act.Dispatch) == [], "10 more do not fit"
    core.arrive("c", prompt_tokens=80, limit_tokens=10, tenant=TenantId("u"))
    assert len(core.said(act.Dispatch)) == 1, "9 do"


def test_large_turn_is_passed_over_only_so_often() -> None:
    core = Steps(fair_quantum_ns=0)
    core.card(slots=2, running_max=2)
    core.arrive("half-0", prompt_tokens=60, tenant=TenantId("small"))
    core.arrive("large", prompt_tokens=180, tenant=TenantId("large"))
    running = ["half-0"]
    passed = 0
    for number in range(1, 3 * PASSED_OVER_MAX):
        core.arrive(f"half-{number}", prompt_tokens=60, tenant=TenantId("small"))
        new = [order.turn for order in core.said(act.Dispatch)]
        if number > 1:
            core.end(running.pop(0), kv_tokens=0)
            new += [order.turn for order in core.said(act.Dispatch)]
            for drop in core.said(act.DropKv):
                core.dropped(drop)
                new += [order.turn for order in core.said(act.Dispatch)]
        if "large" in new:
            break
        passed += len(new)
        running += new
    assert "large" in new
    assert passed <= PASSED_OVER_MAX + 2


def bound_to_a_full_card(*cards: str) -> Steps:
    """Sessions "a" and "b" left their KV on the first and the last card; nothing else has it.

    On the first a turn leaves 30 of 200 tokens beside them; "a2", the first in order, needs 120.
    """
    core = Steps(pool_bytes_max=0, lanes=(LANE._replace(admit_permille=9_000),) * 3)
    for name in cards:
        core.card(name, slots=4, running_max=4)
    core.arrive("a1", "a")
    core.arrive("b1", "b")
    core.end("a1")
    core.end("b1")
    core.arrive("fills", prompt_tokens=100)
    assert core.one(act.Dispatch).card == cards[0]
    core.arrive("a2", "a", lane=0, prompt_tokens=110, reuse_tokens=30)
    assert core.said(act.Dispatch) == []
    return core


@pytest.mark.parametrize("cards", [("c0",), ("c0", "c1")])
def test_a_turn_bound_to_a_full_card_hides_none_that_are_bound_too(cards: tuple[str, ...]) -> None:
    core = bound_to_a_full_card(*cards)
    core.arrive("b2", "b", prompt_tokens=31, reuse_tokens=30)
    order = core.one(act.Dispatch)
    assert (order.turn, order.card) == ("b2", cards[-1])


def test_a_turn_bound_to_a_full_card_is_passed_there_only_so_often() -> None:
    core = bound_to_a_full_card("c0")
    for number in range(PASSED_OVER_MAX):
        core.arrive(f"b2-{number}", "b", prompt_tokens=31, reuse_tokens=30)
        assert len(core.said(act.Dispatch)) == 1
        core.end(f"b2-{number}")
    core.arrive("later", "b", prompt_tokens=31, reuse_tokens=30)
    core.arrive("new", tenant=TenantId("u"), prompt_tokens=1)
    assert core.said(act.Dispatch) == []
    core.end("fills", kv_tokens=0)
    started = [order.turn for order in core.said(act.Dispatch)]
    core.dropped(core.one(act.DropKv))
    started += [order.turn for order in core.said(act.Dispatch)]
    assert sorted(started) == ["a2", "later", "new"]


def test_branches_of_a_session_run_side_by_side_and_turns_of_a_branch_in_order() -> None:
    core = Steps()
    core.card(slots=3, running_max=3)
    core.arrive("a", "s")
    core.arrive("b", "s")
    assert core.said(act.Dispatch) == []
    core.arrive("c", "s", branch=BranchId(1))
    assert core.one(act.Dispatch).turn == "c"
    core.end("a")
    assert core.one(act.Dispatch).turn == "b"


def test_a_stream_without_a_prompt_takes_one_however_long_the_others_are() -> None:
    core = Steps()
    core.card(slots=4, running_max=4, prompt_streams=2, kv_tokens=20_000, context_tokens=20_000)
    core.arrive("a", prompt_tokens=2 * BUDGET)
    core.arrive("b", prompt_tokens=2 * BUDGET)
    assert core.one(act.Dispatch).turn == "b", "it computes two side by side"
    core.arrive("c")
    assert core.said(act.Dispatch) == []


def test_prompts_wait_here_while_a_card_has_enough_to_compute() -> None:
    core = Steps()
    sizes: dict[str, Any] = {"kv_tokens": 20_000, "context_tokens": 20_000}
    core.card(slots=4, running_max=4, prompt_streams=1, **sizes)
    core.arrive("a", prompt_tokens=BUDGET - 20)
    core.arrive("b")
    assert core.one(act.Dispatch).turn == "b", "both are computed in time"
    core.arrive("c")
    assert core.said(act.Dispatch) == [], "it has enough to compute"
    core.tell(ev.TurnStarted(TurnId("a"), 1, BUDGET - 20, 0))
    assert core.one(act.Dispatch).turn == "c"
    core.arrive("d", prompt_tokens=10 * BUDGET)
    assert core.one(act.Dispatch).turn == "d", "a long one waits no longer than a short one"
    core.arrive("e")
    assert core.said(act.Dispatch) == []


def test_short_prompts_do_not_pass_a_long_one_for_which_a_card_has_too_much() -> None:
    core = Steps()
    core.card(slots=4, running_max=4, prompt_streams=1, kv_tokens=20_000, context_tokens=20_000)
    core.arrive("a", prompt_tokens=BUDGET - 1)
    core.arrive("b", prompt_tokens=1)
    core.arrive("long", prompt_tokens=BUDGET)
    core.tell(ev.TimerFired(), after_ns=PATIENCE * BUDGET * FIRST_TOKEN_NS)
    core.arrive("short", prompt_tokens=10)
    core.said(act.Dispatch)
    core.tell(ev.TurnStarted(TurnId("b"), 1, 1, 0))
    assert core.one(act.Dispatch).turn == "long"


def test_a_stream_without_a_prompt_is_open_however_long_that_of_another_is() -> None:
    core = Steps()
    core.card(slots=4, running_max=4, prompt_streams=2, kv_tokens=20_000, context_tokens=20_000)
    for turn in ("long", "short"):
        core.arrive(turn, prompt_tokens=3 * BUDGET if turn == "long" else 20)
        assert core.one(act.Dispatch).turn == turn


def test_a_turn_goes_to_the_card_that_has_least_to_compute() -> None:
    core = Steps()
    core.card("c0", slots=3, running_max=3)
    core.card("c1", slots=3, running_max=3)
    core.arrive("long", prompt_tokens=90)
    for turn in ("b", "c", "d"):
        core.arrive(turn)
        assert core.one(act.Dispatch).card == "c1"


def test_less_work_goes_first() -> None:
    core = one_slot()
    core.arrive("long", prompt_tokens=90)
    core.arrive("short", prompt_tokens=10)
    assert served(core, "first") == ["short", "long"]


def test_a_turn_lets_shorter_ones_pass_for_so_long_only() -> None:
    core = one_slot()
    core.arrive("long", prompt_tokens=90)
    group = core.base.state.groups[ModelId("m")]
    core.tell(ev.TimerFired(), after_ns=PATIENCE * group.costs.time_of(90))
    core.arrive("late", prompt_tokens=10)
    assert served(core, "first") == ["long", "late"]


def test_a_lower_lane_gets_its_minimum_share() -> None:
    lanes = (LANE, LANE._replace(share_permille=100, queue_max=100), LANE)
    core = one_slot(lanes=(lanes[0]._replace(queue_max=100), lanes[1], lanes[2]))
    for number in range(40):
        core.arrive(f"i{number}", lane=0)
        core.arrive(f"s{number}", lane=1)
    order = [turn[0] for turn in served(core, "first")]
    assert order[:36].count("s") == 3


def test_tenants_get_service_by_weight() -> None:
    tenants = (FREE._replace(tenant=TenantId("a"), weight=3),)
    lanes = (LANE._replace(queue_max=100),) * 3
    core = one_slot(fair_quantum_ns=0, lanes=lanes, tenants=tenants)
    for number in range(12):
        core.arrive(f"a{number}", tenant=TenantId("a"))
        core.arrive(f"b{number}", tenant=TenantId("b"))
    order = [turn[0] for turn in served(core, "first")[:12]]
    assert order.count("a") == 9


def test_a_card_runs_fewer_while_turns_wait_that_cannot_all_start() -> None:
    core = Steps()
    core.card(slots=2, running_max=2, running_busy=1)
    for turn in ("a", "b"):
        core.arrive(turn)
        assert core.one(act.Dispatch).turn == turn, "two are at ease"
    for turn in ("c", "d"):
        core.arrive(turn)
    core.end("a", kv_tokens=0)
    core.dropped(core.one(act.DropKv))
    assert core.said(act.Dispatch) == [], "two wait for one place"
    core.end("b", kv_tokens=0)
    assert core.one(act.Dispatch).turn == "c"
    core.dropped(core.one(act.DropKv))
    assert core.one(act.Dispatch).turn == "d", "nobody else waits"


def test_cards_that_others_fill_hide_none_that_has_room() -> None:
    core = Steps()
    core.card("roomy", slots=3, running_max=3)
    for turn in ("a", "b"):
        core.arrive(turn)
    for number in range(CARDS_TRIED_MAX):
        core.card(f"full{number}")
        core.arrive(f"long{number}", limit_tokens=130)
        assert core.one(act.Dispatch).card == f"full{number}"
    core.arrive("next", limit_tokens=80)
    assert core.one(act.Dispatch).card == "roomy"


def test_a_turn_says_whether_it_waits_for_room_or_for_those_that_run() -> None:
    """Beside the running turn of 30 tokens is room for one of 30, but not for one of 180."""
    core = Steps()
    core.card(slots=2, running_max=2, running_busy=1)
    for number in range(5):
        core.arrive(f"t{number}")
    core.arrive("large", tenant=TenantId("u"), limit_tokens=160)
    core.end("t0")
    turns = core.base.state.turns
    assert [name for name, turn in turns.items() if turn.state == "running"] == ["t1"]
    assert (turns[TurnId("t2")].why, turns[TurnId("large")].why) == ("busy", "no_room")
    shown = {one.session: one.branches[0].why for one in view.sessions(core.base)}
    assert "run as many turns, as they should" in shown["s-t2"]
