"""Batch and shared turns that run make way for those above them, and go on where they were."""

from __future__ import annotations

from typing import Any

import pytest

from bedplate.core import actions as act
from bedplate.core import events as ev
from bedplate.core.ids import CardId, TenantId, TurnId
from bedplate.core.limits import BATCH, INTERACTIVE, SHARED, YIELDS_MAX, TenantPolicy
from bedplate.core.snapshot import restore, snapshot
from bedplate.core.units import SECOND_NS
from tests.unit.core.steps import FREE, LANE, Steps

OUT = 100


def world(**card: Any) -> Steps:
    """A card with one slot, and lanes that wait long."""
    lane = LANE._replace(output_tokens=OUT)
    core = Steps(lanes=(lane, lane, lane))
    core.card(**{"slots": 1, "running_max": 1, **card})
    return core


def begin(core: Steps, turn: str, lane: int, *, out: int = 10, **changes: Any) -> None:
    """A turn arrives, is dispatched, and has got so far."""
    core.arrive(turn, lane=lane, **{"resumable": True, **changes})
    assert core.one(act.Dispatch).turn == turn
    core.tell(ev.TurnStarted(TurnId(turn), 1, 20, 0), after_ns=SECOND_NS)
    core.tell(ev.TokensEmitted(TurnId(turn), 1, out), after_ns=SECOND_NS)


def give_way(core: Steps, turn: str, *, attempt: int = 1, out: int = 10, kv: int = 29) -> None:
    """The engine stops the turn, and its slot holds so many tokens."""
    core.end(turn, attempt=attempt, status="yielded", out_tokens=out, kv_tokens=kv, exact=False)


def test_a_batch_turn_makes_way_and_goes_on_behind_what_was_delivered() -> None:
    core = world()
    begin(core, "batch", BATCH)
    core.arrive("now", lane=INTERACTIVE)
    assert core.one(act.YieldTurn) == act.YieldTurn(TurnId("batch"), 1)
    give_way(core, "batch")
    store = core.one(act.StoreKv)
    assert not core.said(act.Settled)
    assert not core.said(act.Dispatch)
    core.stored(store, tokens=29)
    core.dropped(core.one(act.DropKv))
    assert core.one(act.Dispatch).turn == "now"
    core.end("now")
    load = core.one(act.LoadKv) if core.said(act.LoadKv) else None
    if load is None:
        core.stored(core.one(act.StoreKv))
        core.dropped(core.one(act.DropKv))
        load = core.one(act.LoadKv)
    assert load.entry == store.entry
    core.loaded(load, tokens=29)
    again = core.one(act.Dispatch)
    assert (again.turn, again.attempt, again.resume_tokens) == ("batch", 2, 10)
    assert (again.expect_cached_tokens, again.loaded) == (19, True)
    assert again.limit_tokens == OUT
    core.end("batch", attempt=2, cached_tokens=0, out_tokens=60, kv_tokens=79)
    row = core.one(act.Settled)
    assert (row.prompt_tokens, row.cached_tokens, row.out_tokens) == (20, 0, 60)
    assert (row.attempts, row.status) == (2, "stop")
    assert core.base.state.counters["yields"] == 1


def test_on_a_card_with_room_the_other_starts_at_once_and_the_kv_stays() -> None:
    core = world(slots=3, running_max=1, kv_tokens=400)
    begin(core, "batch", BATCH)
    core.arrive("now", lane=INTERACTIVE)
    give_way(core, "batch")
    assert core.one(act.Dispatch).turn == "now"
    core.stored(core.one(act.StoreKv), tokens=29)
    core.end("now")
    again = core.one(act.Dispatch)
    assert (again.turn, again.expect_cached_tokens, again.loaded) == ("batch", 19, False)


def test_nobody_else_is_asked_while_one_makes_way() -> None:
    core = world(slots=2, running_max=2, kv_tokens=400)
    begin(core, "a", BATCH)
    begin(core, "b", BATCH)
    core.arrive("now", lane=INTERACTIVE)
    first = core.one(act.YieldTurn).turn
    core.tell(ev.TokensEmitted(TurnId("a"), 1, 12))
    core.tell(ev.CardReport(CardId("c0"), 0, 2, 0, 0, 0))
    assert core.said(act.YieldTurn) == []
    core.arrive("later", lane=INTERACTIVE)
    assert {first, core.one(act.YieldTurn).turn} == {"a", "b"}


def test_while_its_kv_is_stored_it_still_makes_way_for_one() -> None:
    core = world(slots=2, running_max=2, kv_tokens=400)
    begin(core, "a", BATCH, prompt_tokens=20)
    begin(core, "b", BATCH, prompt_tokens=20, out=20)
    core.arrive("now", lane=INTERACTIVE)
    assert core.one(act.YieldTurn).turn == "a", "it has the least KV to move"
    give_way(core, "a")
    assert core.said(act.YieldTurn) == []
    core.stored(core.one(act.StoreKv), tokens=29)
    assert core.said(act.YieldTurn) == []


@pytest.mark.parametrize(
    ("lane", "above"),
    [(INTERACTIVE, INTERACTIVE), (SHARED, SHARED), (BATCH, BATCH), (INTERACTIVE, SHARED)],
)
def test_nobody_yields_to_its_own_lane_or_a_lower_one(lane: int, above: int) -> None:
    core = world()
    begin(core, "a", lane)
    core.arrive("b", lane=above)
    assert core.said(act.YieldTurn) == []


def test_a_card_that_cannot_cut_what_is_stored_gives_way_too_and_all_of_it_is_used() -> None:
    core = world(can_cut=False)
    begin(core, "batch", BATCH)
    core.arrive("now", lane=INTERACTIVE)
    assert core.one(act.YieldTurn).turn == "batch"
    give_way(core, "batch")
    stored = core.one(act.StoreKv)
    core.stored(stored, tokens=29)
    core.dropped(core.one(act.DropKv))
    core.end("now", kv_tokens=0)
    core.dropped(core.one(act.DropKv))
    load = core.one(act.LoadKv)
    assert load.entry == stored.entry
    core.loaded(load, tokens=29)
    again = core.one(act.Dispatch)
    assert (again.expect_cached_tokens, again.loaded) == (19, True), "its whole prompt but a token"


@pytest.mark.parametrize("card", [{"kv": "hints"}, {"kv": "none"}], ids=["hints", "none"])
def test_only_where_it_can_go_on_from_its_kv(card: dict[str, Any]) -> None:
    core = world(**card)
    begin(core, "batch", BATCH)
    core.arrive("now", lane=INTERACTIVE)
    assert core.said(act.YieldTurn) == []


def test_only_turns_that_can_go_on() -> None:
    core = world()
    begin(core, "batch", BATCH, resumable=False)
    core.arrive("now", lane=INTERACTIVE)
    assert core.said(act.YieldTurn) == []


def test_not_within_its_last_tokens() -> None:
    core = world()
    begin(core, "batch", BATCH, out=OUT - 32)
    core.arrive("now", lane=INTERACTIVE)
    assert core.said(act.YieldTurn) == []


def test_not_for_a_turn_that_could_not_run_there_or_may_not_run() -> None:
    limit = TenantPolicy(TenantId("small"), 1, 0, 0, 0, 0, 0)
    core = Steps(
        lanes=tuple(LANE._replace(output_tokens=OUT) for _ in range(3)),
        tenants=(limit,),
        default_tenant=FREE,
    )
    core.card("c0", slots=1, running_max=1)
    core.card("c1", slots=1, running_max=1, context_tokens=400, kv_tokens=400)
    begin(core, "large", INTERACTIVE, prompt_tokens=250, tenant=TenantId("small"))
    begin(core, "batch", BATCH)
    core.arrive("long", lane=INTERACTIVE, prompt_tokens=150)
    assert core.said(act.YieldTurn) == [], "c0 holds 200 tokens"
    core.arrive("more", lane=INTERACTIVE, tenant=TenantId("small"))
    assert core.said(act.YieldTurn) == [], "its tenant runs one turn at a time"
    core.arrive("now", lane=INTERACTIVE)
    assert core.one(act.YieldTurn).turn == "batch"


def test_decoding_before_computing_and_batch_before_shared() -> None:
    core = world(slots=3, running_max=3, kv_tokens=400, context_tokens=400)
    begin(core, "shared", SHARED)
    core.arrive("prompt", lane=BATCH, resumable=True)
    begin(core, "batch", BATCH, out=60)
    asked = []
    for number in range(3):
        core.arrive(f"now-{number}", lane=INTERACTIVE)
        asked.append(core.one(act.YieldTurn).turn)
    assert asked == ["batch", "prompt", "shared"]


def test_shared_turns_make_way_for_interactive_ones_only_the_youngest_first() -> None:
    core = world(slots=2, running_max=2, kv_tokens=400)
    begin(core, "old", SHARED)
    begin(core, "young", SHARED)
    core.arrive("now", lane=INTERACTIVE)
    assert core.one(act.YieldTurn).turn == "young"


def test_a_prompt_is_taken_back_and_nothing_is_charged_for_it() -> None:
    core = world()
    core.arrive("batch", lane=BATCH, resumable=True)
    core.arrive("now", lane=INTERACTIVE)
    assert core.one(act.YieldTurn).turn == "batch"
    core.end("batch", status="yielded", prompt_tokens=0, out_tokens=0, kv_tokens=0)
    core.dropped(core.one(act.DropKv))
    assert core.one(act.Dispatch).turn == "now"
    core.cancel("batch")
    row = core.one(act.Settled)
    assert (row.prompt_tokens, row.out_tokens, row.status) == (0, 0, "cancelled")


def test_a_prompt_is_taken_back_where_prompts_wait_for_one_another() -> None:
    core = world(slots=4, running_max=4, kv_tokens=8_000, context_tokens=6_000, prompt_streams=1)
    begin(core, "decoding", BATCH)
    core.arrive("prompt", lane=BATCH, resumable=False, prompt_tokens=5_000)
    assert core.one(act.Dispatch).turn == "prompt"
    core.arrive("now", lane=INTERACTIVE)
    assert core.said(act.Dispatch) == [], "it computes more than its budget"
    assert core.one(act.YieldTurn).turn == "prompt", "who decodes is in nobody's way"
    give_way(core, "prompt", out=0, kv=0)
    assert core.one(act.Dispatch).turn == "now"


def test_it_yields_a_bounded_number_of_times() -> None:
    core = world(slots=3, running_max=1, kv_tokens=600)
    begin(core, "batch", BATCH)
    for attempt in range(1, YIELDS_MAX + 1):
        core.arrive(f"now-{attempt}", lane=INTERACTIVE)
        assert core.one(act.YieldTurn).attempt == attempt
        give_way(core, "batch", attempt=attempt)
        assert core.one(act.Dispatch).turn == f"now-{attempt}"
        for order in core.said(act.StoreKv):
            core.stored(order, tokens=29)
        core.end(f"now-{attempt}", kv_tokens=0)
        for drop in core.said(act.DropKv):
            core.dropped(drop)
        started = TurnId("batch"), attempt + 1
        core.tell(ev.TurnStarted(*started, 30, 29))
    core.arrive("now", lane=INTERACTIVE)
    assert core.said(act.YieldTurn) == []
    core.end("batch", attempt=YIELDS_MAX + 1, out_tokens=60, kv_tokens=79)
    assert core.one(act.Dispatch).turn == "now"


def test_yields_are_no_failures_and_failures_no_yields() -> None:
    core = world(slots=3, running_max=1, kv_tokens=600)
    begin(core, "batch", BATCH)
    for attempt in (1, 2, 3):
        core.arrive(f"now-{attempt}", lane=INTERACTIVE)
        give_way(core, "batch", attempt=attempt, kv=0)
        core.end(f"now-{attempt}", kv_tokens=0)
        for drop in core.said(act.DropKv):
            core.dropped(drop)
    core.fail("batch", attempt=4, out=10)
    assert core.said(act.FailTurn) == []


def test_what_ended_well_just_before_it_was_asked_is_done() -> None:
    core = world()
    begin(core, "batch", BATCH)
    core.arrive("now", lane=INTERACTIVE)
    assert core.said(act.YieldTurn)
    core.end("batch", out_tokens=50, kv_tokens=69)
    assert core.one(act.Settled).status == "stop"


def test_what_was_cancelled_meanwhile_ends() -> None:
    core = world()
    begin(core, "batch", BATCH)
    core.arrive("now", lane=INTERACTIVE)
    core.cancel("batch")
    give_way(core, "batch")
    row = core.one(act.Settled)
    assert (row.status, row.prompt_tokens, row.out_tokens) == ("cancelled", 20, 10)


def test_cancelled_while_it_waits_it_pays_what_it_had_and_its_line_is_as_before() -> None:
    core = world(slots=3, running_max=1, kv_tokens=600)
    core.keep("first", "s", lane=BATCH)
    core.arrive("batch", "s", lane=BATCH, resumable=True, prompt_tokens=40, reuse_tokens=25)
    assert core.one(act.Dispatch).expect_cached_tokens == 25
    core.tell(ev.TurnStarted(TurnId("batch"), 1, 40, 25))
    core.arrive("now", lane=INTERACTIVE)
    core.end(
        "batch", status="yielded", prompt_tokens=40, cached_tokens=25, out_tokens=10, kv_tokens=49
    )
    store = core.one(act.StoreKv)
    core.cancel("batch")
    row = core.one(act.Settled)
    assert (row.prompt_tokens, row.cached_tokens, row.out_tokens) == (40, 25, 10)
    core.stored(store, tokens=51)
    core.end("now")
    core.arrive("next", "s", lane=BATCH, prompt_tokens=60, reuse_tokens=30)
    found = [order for order in core.last if isinstance(order, act.Dispatch)]
    assert [order.expect_cached_tokens for order in found] == [25], "not what it never said"


def test_a_turn_that_its_lane_was_owed_is_left_alone() -> None:
    lane = LANE._replace(output_tokens=OUT)
    core = Steps(lanes=(lane._replace(queue_max=64), lane, lane._replace(share_permille=1000)))
    core.card(slots=1, running_max=1)
    core.arrive("first", lane=INTERACTIVE)
    core.arrive("batch", lane=BATCH, resumable=True)
    ran = "first"
    for number in range(6):
        core.arrive(f"now-{number}", lane=INTERACTIVE)
        core.end(ran, kv_tokens=0)
        core.dropped(core.one(act.DropKv))
        ran = core.one(act.Dispatch).turn
        assert core.said(act.YieldTurn) == []
        if ran == "batch":
            return
    raise AssertionError("the lane never got its share")


def test_a_lost_card_takes_the_promise_with_it() -> None:
    core = world()
    begin(core, "batch", BATCH)
    core.arrive("now", lane=INTERACTIVE)
    core.down()
    group = next(iter(core.base.state.groups.values()))
    assert not group.yielding
    assert not group.may_yield
    core.card(slots=1, running_max=1)
    assert core.one(act.Dispatch).turn == "now"


def test_without_room_in_the_pool_it_computes_again() -> None:
    core = Steps(
        lanes=tuple(LANE._replace(output_tokens=OUT) for _ in range(3)), pool_bytes_max=20_000
    )
    core.card(slots=1, running_max=1, kv_tokens=400)
    begin(core, "batch", BATCH)
    core.arrive("now", lane=INTERACTIVE)
    give_way(core, "batch")
    assert core.said(act.StoreKv) == []
    core.dropped(core.one(act.DropKv))
    assert core.one(act.Dispatch).turn == "now"
    core.end("now", kv_tokens=0)
    core.dropped(core.one(act.DropKv))
    again = core.one(act.Dispatch)
    assert (again.turn, again.resume_tokens, again.expect_cached_tokens) == ("batch", 10, 0)


def test_a_snapshot_in_between_knows_it() -> None:
    core = world()
    begin(core, "batch", BATCH)
    core.arrive("now", lane=INTERACTIVE)
    core.base = restore(snapshot(core.base))
    give_way(core, "batch")
    core.base = restore(snapshot(core.base))
    core.stored(core.one(act.StoreKv), tokens=29)
    core.dropped(core.one(act.DropKv))
    assert core.one(act.Dispatch).turn == "now"
