"""What people who use the product saw of the core."""

from __future__ import annotations

from typing import Any

import pytest

from bedplate.core import actions as act
from bedplate.core import events as ev
from bedplate.core import invariants, view
from bedplate.core.base import Base
from bedplate.core.ids import BranchId, CardId, ModelId, SessionId, TenantId, TurnId
from bedplate.core.limits import BRANCHES_MAX, default_policy
from bedplate.core.snapshot import restore, snapshot
from bedplate.core.units import SECOND_NS


class Run:
    """A core, a clock, and the actions of the last step."""

    def __init__(self, *, pool_bytes_max: int = 0, **policy: Any) -> None:
        self.base = Base()
        self.now_ns = SECOND_NS
        self.actions: tuple[act.Action, ...] = ()
        policy_now = default_policy(pool_bytes_max=pool_bytes_max)._replace(**policy)
        self.tell(ev.PolicyChanged(policy_now))

    def tell(self, event: ev.Event, *, after_ns: int = 1_000) -> tuple[act.Action, ...]:
        self.now_ns += after_ns
        self.actions = self.base.handle(self.now_ns, event)
        invariants.check(self.base)
        return self.actions

    def card(self, name: str, model: str = "m", **changed: Any) -> None:
        up: dict[str, Any] = {
            "partition": "", "kv": "hints", "can_cut": True, "slots": 8, "running_max": 1,
            "kv_tokens": 8192, "context_tokens": 8192, "kv_bytes_per_token": 1,
        }  # fmt: skip
        self.tell(ev.CardUp(card=CardId(name), model=ModelId(model), **{**up, **changed}))

    def arrive(self, turn: str, session: str, tenant: str = "t", **changed: Any) -> None:
        call: dict[str, Any] = {
            "branch": BranchId(0), "fork_of": -1, "lane": 0, "model": ModelId("m"),
            "prompt_tokens": 100, "reuse_tokens": 0, "limit_tokens": 20, "resumable": True,
            "exact": True,
        }  # fmt: skip
        named = {"turn": TurnId(turn), "session": SessionId(session), "tenant": TenantId(tenant)}
        self.tell(ev.TurnArrived(**{**call, **changed, **named}))

    def end(self, turn: str, prompt: int = 100) -> tuple[act.Action, ...]:
        event = ev.TurnEnded(TurnId(turn), 1, "stop", prompt, 0, 20, prompt + 19, "", exact=True)
        return self.tell(event)

    def started(self) -> list[str]:
        return [action.turn for action in self.actions if isinstance(action, act.Dispatch)]


def test_a_snapshot_of_other_fields_is_refused() -> None:
    run = Run()
    run.card("c")
    saved = snapshot(run.base)
    group = next(fields for name, fields in saved["records"] if name == "Group")
    del group["wake_ns"]
    with pytest.raises(ValueError, match="a Group of the snapshot has other fields"):
        restore(saved)


def test_idle_sessions_make_room_in_every_model_they_used() -> None:
    run = Run()
    run.card("a", "a", running_max=8)
    run.card("b", "b", running_max=8, kv_tokens=1024, context_tokens=1024)
    for name in ("s1", "s2"):
        run.arrive(f"{name}.a", name, model=ModelId("a"))
        run.end(f"{name}.a")
        run.arrive(f"{name}.b", name, model=ModelId("b"), branch=BranchId(1), limit_tokens=350)
        run.end(f"{name}.b")
    run.arrive("s3.b", "s3", model=ModelId("b"), limit_tokens=350)
    assert run.started() == []
    run.tell(ev.TimerFired(), after_ns=3 * SECOND_NS)
    assert run.started() == ["s3.b"], "two idle sessions hold all the room of model b"


def test_tenants_take_turns_at_an_endpoint_beyond_their_first_turn() -> None:
    run = Run(fair_quantum_ns=0)
    run.card("c")
    sessions = [("A", f"a{n}") for n in range(3)] + [("B", f"b{n}") for n in range(3)]
    for tenant, name in sessions:
        run.arrive(f"{name}.0", name, tenant)
        run.end(f"{name}.0")
    run.arrive("x", "x", "C")
    for tenant, name in sessions:
        run.arrive(f"{name}.1", name, tenant, prompt_tokens=200, reuse_tokens=119)
    order = []
    run.end("x")
    while running := run.started():
        order += running
        run.end(running[0], 200)
    assert [turn[0] for turn in order[:4]] in (["a", "b", "a", "b"], ["b", "a", "b", "a"])
    assert len(order) == len(sessions)


def test_a_drained_card_stays_out_when_its_process_dies() -> None:
    run = Run()
    run.card("c")
    run.tell(ev.CardDraining(CardId("c"), on=True))
    run.tell(ev.CardDown(CardId("c"), "killed"))
    run.card("c")
    assert view.cards(run.base)[0].draining
    run.arrive("t", "s")
    assert run.started() == []
    run.tell(ev.CardDraining(CardId("c"), on=False))
    assert run.started() == ["t"]


def test_a_session_of_busy_branches_takes_no_more() -> None:
    run = Run()
    run.card("c", running_max=8, slots=8, kv_tokens=1 << 20, context_tokens=8192)
    policy = default_policy()
    lanes = tuple(lane._replace(queue_max=10_000) for lane in policy.lanes)
    run.tell(ev.PolicyChanged(policy._replace(lanes=lanes)))
    for number in range(BRANCHES_MAX):
        run.arrive(f"t{number}", "s", branch=BranchId(number))
    run.arrive("more", "s", branch=BranchId(BRANCHES_MAX))
    (refusal,) = [action for action in run.actions if isinstance(action, act.Refuse)]
    assert refusal.reason == "lane_full"
    assert "branches of this session" in refusal.detail


def test_turns_on_their_way_to_a_card_count_as_running() -> None:
    run = Run(pool_bytes_max=1 << 30)
    run.card("c", kv="full", slots=1)
    run.arrive("a", "s1")
    run.end("a")
    run.tell(
        ev.KvStored(
            CardId("c"),
            run.base.state.cards[CardId("c")].slots[0].id,
            next(iter(run.base.state.entries)),
            119,
            119,
        )
    )
    run.arrive("b", "s2")
    assert run.started() == [], "the slot is being emptied"
    assert [lane.running for lane in view.lanes(run.base)] == [1, 0, 0]


def test_a_running_turn_shows_since_when_and_how_far_it_got() -> None:
    run = Run()
    run.card("c", kv="hints", slots=1, running_max=1)
    run.arrive("a", "s1")
    run.arrive("b", "s2")
    began_ns = run.base.state.now_ns
    run.tell(ev.TurnStarted(TurnId("a"), 1, 100, 0), after_ns=3 * SECOND_NS)
    run.tell(ev.TokensEmitted(TurnId("a"), 1, 41))
    shown = {one.session: one.branches[0] for one in view.sessions(run.base)}
    running, waiting = shown[SessionId("s1")], shown[SessionId("s2")]
    assert (running.state, running.out_tokens) == ("running", 41)
    assert running.since_ns <= began_ns
    assert (waiting.state, waiting.out_tokens, waiting.since_ns) == ("ready", 0, began_ns)
    run.end("a")
    (idle,) = [one for one in view.sessions(run.base) if one.session == "s1"]
    assert (idle.branches[0].since_ns, idle.branches[0].out_tokens) == (0, 0)


def test_rent_of_weeks_fits_rows_of_64_bits_and_adds_up() -> None:
    run = Run()
    run.card("c", kv="hints", kv_tokens=1 << 20, context_tokens=1 << 20)
    run.arrive("a", "s", prompt_tokens=200_000)
    run.end("a", 200_000)
    weeks_ns = 40 * 24 * 3600 * SECOND_NS
    run.tell(ev.SessionClosed(SessionId("s"), "closed"), after_ns=weeks_ns)
    rows = [action for action in run.actions if isinstance(action, act.Settled)]
    assert all(0 <= row.kv_card_token_ns < 1 << 63 for row in rows)
    assert len(rows) > 1
    held_tokens = -(-200_019 // 32) * 32
    assert sum(row.kv_card_token_ns for row in rows) == held_tokens * weeks_ns


def test_a_card_may_come_back_with_another_model() -> None:
    run = Run()
    run.card("c", "old")
    run.arrive("a", "s1", model=ModelId("old"))
    run.card("c", "new")
    assert [card.model for card in view.cards(run.base)] == ["new"]
    run.arrive("b", "s2", model=ModelId("new"))
    assert run.started() == ["b"]
    run.arrive("c", "s3", model=ModelId("old"))
    (refusal,) = [action for action in run.actions if isinstance(action, act.Refuse)]
    assert refusal.reason == "no_engine"


def test_a_drained_card_that_comes_back_with_another_model_stays_out() -> None:
    run = Run()
    run.card("c", "old")
    run.tell(ev.CardDraining(CardId("c"), on=True))
    run.card("c", "new")
    run.arrive("a", "s", model=ModelId("new"))
    assert run.started() == []
    run.tell(ev.CardDraining(CardId("c"), on=False))
    assert run.started() == ["a"]


def test_the_block_size_changes_only_while_no_card_is_up() -> None:
    run = Run()
    run.card("c")
    larger = default_policy()._replace(block_tokens=64)
    run.tell(ev.PolicyChanged(larger))
    assert run.base.state.policy.block_tokens == 32
    assert [a.kind for a in run.actions if isinstance(a, act.Alarm)] == ["block_size_kept"]
    run.tell(ev.CardDown(CardId("c"), "restart"))
    run.tell(ev.PolicyChanged(larger))
    run.card("c")
    run.arrive("a", "s")
    assert run.started() == ["a"]
    assert view.cards(run.base)[0].kv_used_tokens == 128


def test_a_snapshot_holds_integers_of_more_than_64_bits_as_text() -> None:
    run = Run()
    tenant = default_policy().default_tenant._replace(tokens_per_minute=400_000_000)
    run.tell(ev.PolicyChanged(default_policy()._replace(default_tenant=tenant)))
    run.card("c")
    run.arrive("a", "s")
    saved = snapshot(run.base)

    def whole(value: Any) -> bool:
        if isinstance(value, int):
            return -(1 << 63) <= value < 1 << 63
        if isinstance(value, dict):
            return all(map(whole, value.values()))
        return not isinstance(value, list) or all(map(whole, value))

    assert whole(saved)
    assert restore(saved).state.tenants[TenantId("t")].token_level > 1 << 63
