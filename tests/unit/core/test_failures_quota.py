"""A tenant over its limits of KV pays with its own (F20); a line stays with its model (F13)."""

from __future__ import annotations

import pytest

from bedplate.core import actions as act
from bedplate.core import events as ev
from bedplate.core.ids import ModelId, TenantId, TurnId
from bedplate.core.limits import TenantPolicy
from bedplate.core.view import why
from tests.unit.core.steps import FREE, Steps


def limited(*, card_tokens_max: int = 0, pool_bytes_max: int = 0) -> TenantPolicy:
    return FREE._replace(
        tenant=TenantId("t"), card_tokens_max=card_tokens_max, pool_bytes_max=pool_bytes_max
    )


def run_one(run: Steps, turn: str, session: str, **changes: object) -> None:
    """One turn from call to stored copy, as far as the pool takes it."""
    run.arrive(turn, session, **changes)
    run.end(turn)
    for order in run.said(act.StoreKv):
        run.stored(order)


# On cards.


def test_failures_f20_over_its_card_limit_a_tenant_gives_up_its_own() -> None:
    """F20: quota 10 units, writes 15: its oldest idle KV goes, others keep theirs; counted."""
    run = Steps(tenants=(limited(card_tokens_max=100),), pool_bytes_max=0)
    run.card(slots=20, running_max=20, kv_tokens=2_000)
    run_one(run, "o0", "other", tenant=TenantId("other"))
    for number in range(15):
        run_one(run, f"t{number}", f"s{number}")
        for drop in run.said(act.DropKv):
            run.dropped(drop)
    state = run.base.state
    assert state.tenants[TenantId("t")].card_blocks <= 10
    held = [s.branch.session.id for s in state.cards["c0"].slots if s.branch]  # type: ignore[index]
    assert "other" in held
    assert sorted(held) == ["other", "s12", "s13", "s14"], "the least recently used went"
    assert state.counters["quota_evictions"] == 12
    assert len(state.sessions) == 16, "no session ended for it: their KV is computed again"
    run.arrive("again", "s0", prompt_tokens=40, reuse_tokens=30)
    assert run.one(act.Dispatch).expect_cached_tokens == 0


def test_failures_f20_what_runs_holds_the_limit_and_the_next_turn_waits() -> None:
    """F20: nothing of its own is idle, so it waits, by name; another tenant runs meanwhile."""
    run = Steps(tenants=(limited(card_tokens_max=70),))
    run.card(slots=8, running_max=8, kv_tokens=2_000)
    run.arrive("t0")
    run.arrive("t1")
    run.arrive("t2")
    assert not run.said(act.Dispatch)
    assert "as much KV on cards as its limit allows" in why(run.base, TurnId("t2"))
    run.arrive("o", tenant=TenantId("other"))
    assert run.one(act.Dispatch).turn == "o"
    run.end("t0")
    assert "t2" in [order.turn for order in run.said(act.Dispatch)]


def test_its_limit_spans_cards_and_models() -> None:
    run = Steps(tenants=(limited(card_tokens_max=60),), pool_bytes_max=0)
    run.card("c0", slots=8, running_max=8, kv_tokens=2_000)
    run.card("c1", model=ModelId("n"), slots=8, running_max=8, kv_tokens=2_000)
    run_one(run, "t0", "s0")
    run_one(run, "t1", "s1")
    run.arrive("n0", "s2", model=ModelId("n"))
    assert [drop.card for drop in run.said(act.DropKv)] == ["c0"]
    assert run.one(act.Dispatch).card == "c1"
    run.arrive("n1", "s3", model=ModelId("n"))
    assert [drop.card for drop in run.said(act.DropKv)] == ["c0"]
    run.arrive("n2", "s4", model=ModelId("n"))
    assert not run.said(act.Dispatch)
    run.end("n0")
    assert run.one(act.Dispatch).turn == "n2"


def test_a_session_that_keeps_its_place_grows_there() -> None:
    run = Steps(tenants=(limited(card_tokens_max=60),), pool_bytes_max=0)
    run.card(slots=8, running_max=8, kv_tokens=2_000)
    run_one(run, "t0", "s0")
    run_one(run, "t1", "s1")
    run.arrive("t2", "s1", prompt_tokens=35, reuse_tokens=30, limit_tokens=5)
    assert run.one(act.Dispatch).expect_cached_tokens == 30
    assert run.one(act.DropKv).slot == 0, "the other session's, not its own"


def test_a_prompt_beyond_the_limit_is_refused_at_the_door() -> None:
    run = Steps(tenants=(limited(card_tokens_max=59),))
    run.card()
    run.arrive("t0", prompt_tokens=50)
    assert run.one(act.Refuse).reason == "context_length_exceeded"
    run.arrive("t1", prompt_tokens=45)
    assert run.one(act.Dispatch).limit_tokens == 5, "whole blocks of the limit"


# In the pool.


def test_failures_f20_over_its_pool_limit_a_tenant_gives_up_its_own() -> None:
    """F20: ten copies fit, fifteen are written; the other tenant's copy stays."""
    run = Steps(tenants=(limited(pool_bytes_max=300_000),))
    run.card(slots=20, running_max=20, kv_tokens=2_000)
    run_one(run, "o0", "other", tenant=TenantId("other"))
    for number in range(15):
        run.arrive(f"t{number}", f"s{number}")
        run.end(f"t{number}")
        for gone in run.said(act.DropEntry):
            run.tell(ev.EntryDropped(gone.entry))
        for order in run.said(act.StoreKv):
            run.stored(order)
    state = run.base.state
    owners = [e.branch.session.id for e in state.entries.values() if e.branch is not None]
    assert "other" in owners
    assert len(owners) == 11
    assert state.tenants[TenantId("t")].pool_bytes <= 300_000
    assert state.counters["pool_evictions"] == 5


def test_failures_f20_a_pool_that_shrinks_under_a_tenant_takes_from_it_alone() -> None:
    """F20: it holds twelve and may hold ten: its next copy costs it three, nobody else any."""
    run = Steps(tenants=(limited(pool_bytes_max=0),))
    run.card(slots=20, running_max=20, kv_tokens=2_000)
    run_one(run, "o0", "other", tenant=TenantId("other"))
    for number in range(12):
        run_one(run, f"t{number}", f"s{number}")
    policy = run.policy._replace(tenants=(limited(pool_bytes_max=300_000),))
    run.tell(ev.PolicyChanged(policy))
    owners = [e.branch.session.id for e in run.base.state.entries.values() if e.branch]
    assert len(owners) == 13, "existing sessions keep readable KV until room is needed"
    run.arrive("t12", "s12")
    run.end("t12")
    gone = run.said(act.DropEntry)
    assert len(gone) == 3
    for drop in gone:
        run.tell(ev.EntryDropped(drop.entry))
    run.stored(run.one(act.StoreKv))
    owners = [e.branch.session.id for e in run.base.state.entries.values() if e.branch]
    assert owners == ["other", *(f"s{number}" for number in range(3, 13))]


# The model of a line.


@pytest.mark.parametrize("state", ["running", "in a tool gap"])
def test_failures_f13_a_branch_stays_with_its_model(state: str) -> None:
    """F13: a follow-up that names another model is refused, the branch goes on with its own."""
    run = Steps()
    run.card("large", model=ModelId("large"), slots=4, running_max=4)
    run.card("small", model=ModelId("small"), slots=4, running_max=4)
    run.arrive("t1", "s", model=ModelId("large"))
    if state != "running":
        run.end("t1", status="tool_calls", tool="commit")
        run.stored(run.one(act.StoreKv))
    run.arrive("t2", "s", model=ModelId("small"), prompt_tokens=40, reuse_tokens=30)
    refusal = run.one(act.Refuse)
    assert (refusal.reason, refusal.detail) == (
        "invalid_request_error",
        "a branch stays with its model",
    )
    if state != "running":
        run.arrive("t3", "s", model=ModelId("large"), prompt_tokens=40, reuse_tokens=30)
        order = run.one(act.Dispatch)
        assert (order.card, order.expect_cached_tokens) == ("large", 30)
