"""Openings that sessions share: stored by the second, loaded by the third, of one tenant only."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bedplate.core import actions as act
from bedplate.core import events as ev
from bedplate.core.fairness import fresh_tokens
from bedplate.core.ids import EntryId, ModelId, SessionId, TenantId, TurnId
from bedplate.core.limits import TenantPolicy
from bedplate.core.prefixes import PREFIXES_MAX
from bedplate.core.snapshot import restore, snapshot
from bedplate.core.units import SECOND_NS
from tests.unit.core.steps import LANE, Steps

OPENING = 300


class Openings(Steps):
    """A core with cards that hold a few sessions of 400 tokens."""

    def __init__(self, **changes: Any) -> None:
        policy = changes.pop("policy", {})
        super().__init__(**policy)
        self.card("c0", **{"slots": 4, "running_max": 4, "kv_tokens": 4000, **changes})

    def card(self, name: str = "c0", **changes: Any) -> None:
        """Bring up a card for sessions of up to 2000 tokens."""
        super().card(name, **{"kv_tokens": 4000, "context_tokens": 2000, **changes})

    def begin(self, turn: str, **changes: Any) -> act.Dispatch:
        """A first turn that begins with the opening and is dispatched at once."""
        call = {"prompt_tokens": 400, "prefix": "o", "prefix_tokens": OPENING}
        self.arrive(turn, **{**call, **changes})
        return self.one(act.Dispatch)

    def finish(self, turn: str, *, cached: int = 0) -> act.Settled:
        """The turn ends, and what it left is stored."""
        self.end(turn, prompt_tokens=400, cached_tokens=cached, kv_tokens=410)
        settled = self.one(act.Settled)
        for order in self.said(act.StoreKv):
            self.stored(order, tokens=410)
        return settled

    def prefix_stored(self, order: act.Dispatch, *, tokens: int = OPENING) -> None:
        """The engine has copied the opening."""
        size = tokens * 1000
        self.tell(ev.KvStored(order.card, order.slot, order.prefix_entry, tokens, size))

    def share(self) -> EntryId:
        """Two sessions begin; the second leaves the opening in the pool."""
        self.begin("a")
        self.finish("a")
        order = self.begin("b")
        self.prefix_stored(order)
        self.finish("b")
        return order.prefix_entry


def test_the_second_session_has_the_opening_stored_and_the_third_loads_it() -> None:
    steps = Openings()
    assert steps.begin("a").prefix_tokens == 0
    steps.finish("a")
    order = steps.begin("b")
    assert (order.prefix_tokens, order.expect_cached_tokens) == (OPENING, 0)
    steps.prefix_stored(order)
    assert steps.said(act.DropEntry) == []
    steps.finish("b")
    steps.arrive("c", prompt_tokens=400, prefix="o", prefix_tokens=OPENING)
    load = steps.one(act.LoadKv)
    assert load.entry == order.prefix_entry
    steps.loaded(load, tokens=OPENING)
    run = steps.one(act.Dispatch)
    assert (run.expect_cached_tokens, run.loaded, run.prefix_tokens) == (OPENING, True, 0)


def test_an_engine_that_cannot_cut_loads_it_too() -> None:
    steps = Openings(can_cut=False)
    entry = steps.share()
    steps.arrive("c", prompt_tokens=500, prefix="o", prefix_tokens=OPENING)
    assert steps.one(act.LoadKv).entry == entry


def test_no_other_tenant_finds_it_under_the_same_name() -> None:
    steps = Openings()
    steps.share()
    for turn in ("x", "y"):
        order = steps.begin(turn, tenant=TenantId("other"))
        assert order.expect_cached_tokens == 0
    assert order.prefix_tokens == OPENING, "it makes a copy of its own"
    mine = steps.base.state.tenants[TenantId("other")]
    assert mine.pool_bytes == OPENING * 1000


def test_no_other_model_finds_it() -> None:
    steps = Openings()
    steps.share()
    steps.card("c1", model=ModelId("n"))
    assert steps.begin("x", model=ModelId("n")).expect_cached_tokens == 0


def test_its_bytes_are_charged_once_however_many_load_it() -> None:
    steps = Openings()
    steps.share()
    tenant = steps.base.state.tenants[TenantId("t")]
    assert tenant.pool_bytes == (OPENING + 2 * 410) * 1000
    for turn in ("c", "d"):
        steps.arrive(turn, prompt_tokens=400, prefix="o", prefix_tokens=OPENING)
        if steps.said(act.LoadKv):
            steps.loaded(steps.one(act.LoadKv), tokens=OPENING)
    assert tenant.pool_bytes == (OPENING + 2 * 410) * 1000


def test_its_rent_is_paid_once_by_the_turns_that_begin_with_it_and_the_rest_at_its_end() -> None:
    steps = Openings(policy={"lanes": (LANE, LANE, LANE._replace(idle_max_ns=20 * SECOND_NS))})
    lane = {"lane": 2}
    steps.begin("a", **lane)
    steps.finish("a")
    order = steps.begin("b", **lane)
    steps.prefix_stored(order)
    begun = steps.now
    steps.close("s-a")
    second = steps.finish("b")
    steps.close("s-b")
    first_ns = steps.now - begun
    assert second.kv_pool_token_ns == first_ns * OPENING
    steps.timer(30 * SECOND_NS)
    rest = [row for row in steps.said(act.Settled) if not row.session]
    assert [(row.tenant, row.lane, row.model, row.turn, row.status) for row in rest] == [
        ("t", 2, "m", "", "closed")
    ]
    assert sum(row.kv_pool_token_ns for row in rest) == 30 * SECOND_NS * OPENING
    assert [drop.entry for drop in steps.said(act.DropEntry)] == [order.prefix_entry]


def test_it_stays_while_sessions_begin_with_it_and_its_makers_are_closed() -> None:
    steps = Openings()
    entry = steps.share()
    steps.close("s-a")
    steps.close("s-b")
    assert entry in steps.base.state.entries
    steps.timer(LANE.idle_max_ns - 2 * SECOND_NS)
    steps.arrive("c", prompt_tokens=400, prefix="o", prefix_tokens=OPENING)
    steps.loaded(steps.one(act.LoadKv), tokens=OPENING)
    steps.finish("c", cached=OPENING)
    steps.timer(LANE.idle_max_ns - 2 * SECOND_NS)
    assert entry in steps.base.state.entries
    steps.timer(10 * SECOND_NS)
    assert entry in [drop.entry for drop in steps.said(act.DropEntry)]


@pytest.mark.parametrize("how", ["cancelled", "lost", "failed"])
def test_a_copy_whose_run_ended_before_is_deleted_and_made_by_the_next(how: str) -> None:
    steps = Openings()
    steps.begin("a")
    steps.finish("a")
    order, again = steps.begin("b"), None
    if how == "cancelled":
        steps.cancel("b")
        steps.end("b", status="cancelled", prompt_tokens=0, kv_tokens=0, out_tokens=0)
    elif how == "lost":
        steps.down()
        steps.card(slots=4, running_max=4)
        again = steps.one(act.Dispatch)
    else:
        steps.fail("b", retryable=False)
    gone = order.prefix_entry
    steps.tell(ev.EntryDropped(gone))
    steps.prefix_stored(order)  # too late
    assert gone not in steps.base.state.entries
    again = again or steps.begin("c")
    assert again.prefix_tokens == OPENING
    assert again.prefix_entry > gone


def test_a_copy_that_failed_costs_the_turn_nothing() -> None:
    steps = Openings()
    steps.begin("a")
    steps.finish("a")
    order = steps.begin("b")
    steps.tell(ev.KvFailed("store", order.card, order.slot, order.prefix_entry, "pool_error"))
    assert steps.last == ()
    assert steps.finish("b").status == "stop"
    assert order.prefix_entry not in steps.base.state.entries
    assert steps.begin("c").prefix_tokens == OPENING


def test_a_copy_of_another_length_is_not_kept() -> None:
    steps = Openings()
    steps.begin("a")
    steps.finish("a")
    order = steps.begin("b")
    steps.prefix_stored(order, tokens=OPENING - 1)
    assert [drop.entry for drop in steps.said(act.DropEntry)] == [order.prefix_entry]


def test_a_load_that_fails_means_a_prefill_and_the_copy_goes() -> None:
    steps = Openings()
    entry = steps.share()
    steps.arrive("c", prompt_tokens=400, prefix="o", prefix_tokens=OPENING)
    steps.lost("load", steps.one(act.LoadKv))
    assert steps.one(act.Dispatch).expect_cached_tokens == 0
    assert [drop.entry for drop in steps.said(act.DropEntry)] == [entry]


@pytest.mark.parametrize(
    ("card", "call"),
    [
        ({}, {"prefix_tokens": 200}),
        ({}, {"prompt_tokens": OPENING}),
        ({"kv": "hints"}, {}),
        ({"kv": "none"}, {}),
    ],
    ids=["short", "nothing follows", "own cache", "no KV"],
)
def test_what_cannot_pay_is_not_stored(card: dict[str, Any], call: dict[str, Any]) -> None:
    steps = Openings(**card)
    for turn in ("a", "b", "c"):
        assert steps.begin(turn, **call).prefix_tokens == 0


def test_without_a_pool_or_over_the_quota_nothing_is_stored() -> None:
    poor = TenantPolicy(TenantId("t"), 0, 0, 0, 0, 0, 1000)
    for policy in ({"pool_bytes_max": 0}, {"tenants": (poor,)}):
        steps = Openings(policy=policy)
        for turn in ("a", "b", "c"):
            assert steps.begin(turn).prefix_tokens == 0


def test_a_tenant_full_of_openings_forgets_the_oldest_with_its_copy() -> None:
    steps = Openings(slots=200, running_max=200, kv_tokens=200_000)
    entry = steps.share()
    for number in range(PREFIXES_MAX):
        assert steps.said(act.DropEntry) == []
        steps.begin(f"n{number}", prefix=f"n{number}")
    assert [drop.entry for drop in steps.said(act.DropEntry)] == [entry]
    assert len(steps.base.state.tenants[TenantId("t")].prefixes) == PREFIXES_MAX


def test_a_turn_with_kv_of_its_own_does_not_use_it() -> None:
    steps = Openings()
    steps.share()
    own = {"prompt_tokens": 450, "reuse_tokens": 410}
    steps.arrive("a2", "s-a", **own, prefix="o", prefix_tokens=OPENING)
    assert steps.one(act.Dispatch).expect_cached_tokens == 410


def test_a_restored_core_shares_the_same() -> None:
    steps = Openings()
    entry = steps.share()
    again = restore(json.loads(json.dumps(snapshot(steps.base))))
    call = ev.TurnArrived(
        TurnId("c"), SessionId("s-c"), steps.base.state.sessions[SessionId("s-a")].rested.id,  # type: ignore[union-attr]
        -1, TenantId("t"), 1, ModelId("m"), 400, 0, 0, False, True, "o", OPENING,
    )  # fmt: skip
    said = again.handle(steps.now, call)
    assert [load.entry for load in said if isinstance(load, act.LoadKv)] == [entry]
    assert said == steps.tell(call)


def test_what_it_saves_is_not_expected_to_be_computed() -> None:
    steps = Openings()
    steps.share()
    steps.arrive("c", prompt_tokens=400, prefix="o", prefix_tokens=OPENING)
    steps.begin("d", prefix="other")
    turns = steps.base.state.turns
    assert fresh_tokens(turns[TurnId("c")]) == 400 - OPENING
    assert fresh_tokens(turns[TurnId("d")]) == 400
