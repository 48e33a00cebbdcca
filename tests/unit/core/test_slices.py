"""Slices: cards, or KV, that are one tenant's for a time; others leave without being cut."""

from __future__ import annotations

import pytest

from bedplate.core import actions as act
from bedplate.core import events as ev
from bedplate.core import slices
from bedplate.core.ids import ModelId, SessionId, TenantId
from bedplate.core.limits import Slice
from bedplate.core.units import SECOND_NS
from tests.unit.core.steps import FREE, Steps

START_NS = 1_000 * SECOND_NS
OTHER = TenantId("o")


def part(name: str = "s", **changes: object) -> Slice:
    """One card for tenant t, from the start on, for ten minutes."""
    base = Slice(name, TenantId("t"), ModelId("m"), 1, 0, -1, START_NS, START_NS + 600 * SECOND_NS)
    return base._replace(**changes)  # type: ignore[arg-type]


def put(steps: Steps, *parts: Slice) -> None:
    """The slices are these from now on."""
    steps.policy = steps.policy._replace(slices=parts)
    steps.tell(ev.PolicyChanged(steps.policy))


def two_cards(*parts: Slice, **policy: object) -> Steps:
    """Cards c0 and c1 for six turns each."""
    steps = Steps(slices=parts, **policy)
    for name in ("c0", "c1"):
        steps.card(name, slots=6, running_max=6, kv_tokens=180, context_tokens=180)
    return steps


def owned(steps: Steps) -> list[str]:
    """Cards that are in a slice."""
    return [card.id for card in steps.base.state.cards.values() if card.slice is not None]


def placed(steps: Steps, turn: str) -> str:
    """Card of a turn, "" while it waits."""
    slot = steps.base.state.turns[turn].slot  # type: ignore[index]
    return slot.card.id if slot is not None else ""


def test_cards_of_a_slice_take_turns_of_its_tenant_alone() -> None:
    steps = two_cards(part())
    assert owned(steps) == ["c0"]
    for number in range(7):
        steps.arrive(f"o{number}", tenant=OTHER)
    steps.arrive("t0")
    assert {placed(steps, f"o{number}") for number in range(6)} == {"c1"}
    assert placed(steps, "o6") == ""
    assert placed(steps, "t0") == "c0"


def test_its_tenant_uses_its_own_cards_first_and_others_too() -> None:
    steps = two_cards(part())
    for number in range(7):
        steps.arrive(f"t{number}")
    assert [placed(steps, f"t{number}") for number in range(7)] == ["c0"] * 6 + ["c1"]


def test_a_slice_of_a_lane_takes_that_lane_only() -> None:
    steps = two_cards(part(lane=0))
    steps.arrive("shared", lane=1)
    steps.arrive("interactive", lane=0)
    assert (placed(steps, "shared"), placed(steps, "interactive")) == ("c1", "c0")


def test_others_leave_a_card_that_becomes_a_slice_and_nothing_is_cut() -> None:
    """The turn that runs ends there, idle KV goes to the pool, the next turn loads it elsewhere."""
    steps = two_cards()
    steps.down("c1")
    steps.arrive("idle", "i", tenant=OTHER)
    steps.end("idle")
    assert steps.said(act.StoreKv)
    steps.arrive("runs", "r", tenant=OTHER)
    put(steps, part())
    assert owned(steps) == ["c0"]
    assert placed(steps, "runs") == "c0"
    state = steps.base.state
    steps.tell(ev.KvStored(state.cards["c0"].id, state.cards["c0"].slots[0].id, 1, 30, 30_000))  # type: ignore[index, arg-type]
    steps.dropped(steps.one(act.DropKv))
    steps.end("runs")
    steps.stored(steps.one(act.StoreKv))
    assert steps.one(act.DropKv).slot == 1
    steps.card("c1", slots=6, running_max=6, kv_tokens=180, context_tokens=180)
    steps.arrive("next", "i", tenant=OTHER, prompt_tokens=40, reuse_tokens=30)
    assert steps.one(act.LoadKv).card == "c1"


def test_a_slice_ends_by_itself() -> None:
    steps = two_cards(part())
    for number in range(7):
        steps.arrive(f"o{number}", tenant=OTHER)
    timers = steps.said(act.SetTimer)
    assert not timers or timers[-1].at_ns <= START_NS + 600 * SECOND_NS
    steps.tell(ev.TimerFired(), after_ns=599 * SECOND_NS)
    assert owned(steps) == ["c0"]
    steps.arrive("late", tenant=OTHER)
    steps.tell(ev.TimerFired(), after_ns=SECOND_NS)
    assert owned(steps) == []
    assert placed(steps, "late") == "c0"


def test_a_slice_begins_by_itself() -> None:
    steps = two_cards(part(from_ns=START_NS + 10 * SECOND_NS))
    assert owned(steps) == []
    steps.tell(ev.TimerFired(), after_ns=10 * SECOND_NS)
    assert owned(steps) == ["c0"]


def test_a_timer_is_armed_for_the_next_change_of_a_slice() -> None:
    steps = two_cards()
    put(steps, part())
    assert [timer.at_ns for timer in steps.said(act.SetTimer)] == [START_NS + 600 * SECOND_NS]


def test_a_slice_that_is_given_back_is_everybodys_again() -> None:
    steps = two_cards(part())
    put(steps)
    for number in range(12):
        steps.arrive(f"o{number}", tenant=OTHER)
    assert {placed(steps, f"o{number}") for number in range(12)} == {"c0", "c1"}


def test_a_card_that_is_lost_or_taken_out_is_replaced() -> None:
    steps = two_cards(part())
    steps.down("c0")
    assert owned(steps) == ["c1"]
    steps.card("c0")
    assert owned(steps) == ["c1"]
    steps.drain("c1")
    assert owned(steps) == ["c0"]


def test_a_slice_that_is_made_longer_keeps_its_card() -> None:
    steps = two_cards(part())
    steps.arrive("t0")
    put(steps, part(until_ns=START_NS + 900 * SECOND_NS))
    assert owned(steps) == ["c0"]
    assert steps.base.state.cards["c0"].slice == steps.policy.slices[0]  # type: ignore[index]


def test_room_of_a_slice_s_cards_admits_its_tenant_only() -> None:
    steps = two_cards(part(), pool_bytes_max=0)
    for number in range(7):
        steps.arrive(f"o{number}", tenant=OTHER)
    state = steps.base.state
    admitted = [state.sessions[SessionId(f"s-o{number}")].admitted for number in range(7)]
    assert admitted == [True] * 6 + [False]
    steps.arrive("t0")
    assert state.sessions[SessionId("s-t0")].admitted


def test_a_slice_of_kv_is_a_reserve_while_it_holds() -> None:
    steps = Steps(slices=(part(cards=0, kv_tokens=60),), pool_bytes_max=0)
    steps.card(slots=10, running_max=10, kv_tokens=120, context_tokens=120)
    for number in range(4):
        steps.arrive(f"o{number}", tenant=OTHER)
    assert [placed(steps, f"o{number}") for number in range(4)] == ["c0", "c0", "", ""]
    steps.policy = steps.policy._replace(slices=())
    steps.tell(ev.PolicyChanged(steps.policy))
    assert [placed(steps, f"o{number}") for number in range(4)] == ["c0"] * 4


@pytest.mark.parametrize(
    ("asked", "others", "says"),
    [
        (part(), (), ""),
        (part(cards=2), (), ""),
        (part(cards=3), (), "cards of m asked for: 3, free then: 2"),
        (part("b"), (part("a"),), ""),
        (part("b", cards=2), (part("a"),), "cards of m asked for: 2, free then: 1"),
        (part("b", cards=2, from_ns=START_NS + 600 * SECOND_NS), (part("a"),), ""),
        (part(cards=0, kv_tokens=361), (), "KV of m asked for: 361 tokens"),
        (part(cards=0, kv_tokens=360), (), ""),
        (
            part("b", cards=0, kv_tokens=181),
            (part("a"),),
            "181 tokens; beside the reserves of tenants and other slices 180",
        ),
        (
            part("b", cards=2),
            (part("a", cards=0, kv_tokens=10),),
            "cards of m asked for: 2; those that are left would hold",
        ),
        (part(model=ModelId("x")), (), "no card that serves x is up"),
    ],
)
def test_what_does_not_fit_is_refused(asked: Slice, others: tuple[Slice, ...], says: str) -> None:
    steps = two_cards(*others)
    found = slices.refusal(steps.base.state, asked)
    assert says in found
    assert bool(says) is bool(found)


def test_reserves_of_tenants_are_not_given_away() -> None:
    reserved = FREE._replace(tenant=OTHER, reserve_tokens=200)
    steps = two_cards(tenants=(reserved,))
    assert "the reserves of tenants and other slices are 200" in slices.refusal(
        steps.base.state, part()
    )
    assert not slices.refusal(steps.base.state, part(cards=0, kv_tokens=160))
