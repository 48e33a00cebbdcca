"""What is refused at the door, with which code, and how limits are clamped."""

from __future__ import annotations

from typing import Any

import pytest

from bedplate.core import actions as act
from bedplate.core import events as ev
from bedplate.core.ids import ModelId, SessionId, TenantId, TurnId
from bedplate.core.limits import TenantPolicy
from bedplate.core.units import MINUTE_NS, SECOND_NS
from tests.unit.core.steps import FREE, LANE, Steps


def limited(**changes: Any) -> dict[str, TenantPolicy]:
    return {"default_tenant": FREE._replace(**changes)}


@pytest.mark.parametrize(
    ("prompt", "wanted", "limit"),
    [
        (20, 0, 10),
        (20, 3, 3),
        (20, 180, 180),
        (20, 181, 180),
        (195, 0, 5),
        (199, 50, 1),
    ],
)
def test_limit_is_the_clients_or_the_lanes_clamped_to_the_context(
    prompt: int, wanted: int, limit: int
) -> None:
    core = Steps()
    core.card()
    core.arrive("a", prompt_tokens=prompt, limit_tokens=wanted)
    assert core.one(act.Dispatch).limit_tokens == limit


def test_limit_is_clamped_to_the_largest_card_and_runs_there() -> None:
    core = Steps()
    core.card("small", kv_tokens=100, context_tokens=100)
    core.card("large")
    core.arrive("a", prompt_tokens=120, limit_tokens=500)
    order = core.one(act.Dispatch)
    assert (order.card, order.limit_tokens) == ("large", 80)


@pytest.mark.parametrize("prompt", [200, 201, 10_000])
def test_prompt_without_room_for_one_token_is_too_long(prompt: int) -> None:
    core = Steps()
    core.card()
    core.arrive("a", prompt_tokens=prompt)
    refusal = core.one(act.Refuse)
    assert refusal.reason == "context_length_exceeded"
    assert "200" in refusal.detail
    assert refusal.retry_after_ns == 0


def test_session_limit_of_the_tenant_counts_as_context() -> None:
    core = Steps(**limited(session_tokens_max=50))
    core.card()
    core.arrive("a", prompt_tokens=45, limit_tokens=20)
    assert core.one(act.Dispatch).limit_tokens == 5
    core.arrive("b", prompt_tokens=50)
    assert core.one(act.Refuse).reason == "context_length_exceeded"


def test_no_card_up_is_no_engine() -> None:
    core = Steps()
    core.arrive("a")
    assert core.one(act.Refuse).reason == "no_engine"
    core.card()
    core.arrive("b", model=ModelId("other"))
    assert core.one(act.Refuse).reason == "no_engine"
    core.arrive("c")
    assert core.said(act.Refuse) == []


def test_queue_is_bounded_per_tenant_and_lane() -> None:
    core = Steps(lanes=(LANE._replace(queue_max=2),) * 3)
    core.card(slots=1, running_max=1)
    core.arrive("runs")
    for turn in ("a", "b"):
        core.arrive(turn)
        assert core.said(act.Refuse) == []
    core.arrive("c")
    refusal = core.one(act.Refuse)
    assert refusal.reason == "lane_full"
    assert refusal.detail == "2 turns of tenant t wait in lane shared (queue_max)"
    assert refusal.retry_after_ns > 0
    core.arrive("d", lane=0)
    assert core.said(act.Refuse) == []
    core.arrive("e", tenant=TenantId("u"))
    assert core.said(act.Refuse) == []


def test_inflight_limit_counts_waiting_and_running_and_is_given_back() -> None:
    core = Steps(**limited(inflight_max=2))
    core.card(slots=1, running_max=1)
    core.arrive("a")
    core.arrive("b")
    core.arrive("c")
    assert core.one(act.Refuse).reason == "quota_exceeded"
    core.end("a")
    core.arrive("d")
    assert core.said(act.Refuse) == []


def test_requests_per_minute_refill_evenly() -> None:
    core = Steps(**limited(requests_per_minute=2))
    core.card(slots=8, running_max=8)
    core.arrive("a")
    core.arrive("b")
    core.arrive("c")
    refusal = core.one(act.Refuse)
    assert refusal.reason == "quota_exceeded"
    assert refusal.retry_after_ns == MINUTE_NS // 2
    core.now += MINUTE_NS // 2 - 1
    core.arrive("d")
    assert core.one(act.Refuse).retry_after_ns == 1
    core.now += 1
    core.arrive("e")
    assert core.said(act.Refuse) == []


def test_tokens_per_minute_charge_what_was_used_not_what_was_asked() -> None:
    core = Steps(**limited(tokens_per_minute=100))
    core.card(slots=8, running_max=8)
    core.arrive("a", prompt_tokens=20, limit_tokens=100)
    core.arrive("b")
    assert core.one(act.Refuse).reason == "quota_exceeded"
    core.tell(ev.TurnEnded(TurnId("a"), 1, "stop", 20, 0, 10, 30, "", True))
    core.arrive("c")
    assert core.said(act.Refuse) == [], "30 of 100 tokens were used"


def test_limits_bind_a_tenant_that_was_never_seen() -> None:
    """F02: the first calls of a new tenant meet the default limit."""
    core = Steps(**limited(requests_per_minute=3))
    core.card(slots=8, running_max=8)
    refused = 0
    for number in range(8):
        core.arrive(f"a{number}", tenant=TenantId("brand-new"))
        refused += len(core.said(act.Refuse))
    assert refused == 5


def test_a_tenant_with_all_sessions_makes_room_for_another() -> None:
    """The longest idle one of the tenant that has most goes; its turns that run never do."""
    core = Steps(sessions_max=3)
    core.card(slots=8, running_max=8)
    many, other = TenantId("many"), TenantId("other")
    for number in range(3):
        core.arrive(f"a{number}", f"s{number}", tenant=many)
    core.arrive("b", "new", tenant=other)
    assert core.one(act.Refuse).reason == "capacity"  # every session has a turn
    core.end("a1", kv_tokens=0)
    core.end("a0", kv_tokens=0)
    core.arrive("b2", "new", tenant=other)
    assert core.one(act.SessionEnded) == act.SessionEnded(SessionId("s1"), "evicted")
    assert core.said(act.Refuse) == []
    core.arrive("a3", "s3", tenant=many)
    assert core.one(act.Refuse).reason == "capacity"  # it has the most itself
    core.arrive("a4", "s0", tenant=many)
    assert core.said(act.Refuse) == []  # and may go on with what it has


def test_of_two_tenants_with_the_most_sessions_the_one_with_an_idle_one_makes_room() -> None:
    core = Steps(sessions_max=4)
    core.card(slots=8, running_max=8)
    busy, idle, other = TenantId("busy"), TenantId("idle"), TenantId("other")
    for number in range(2):
        core.arrive(f"a{number}", f"busy{number}", tenant=busy)
        core.arrive(f"b{number}", f"idle{number}", tenant=idle)
    core.arrive("c", "new", tenant=other)
    assert core.one(act.Refuse).reason == "capacity"  # every session has a turn
    core.end("b1", kv_tokens=0)
    core.arrive("d", "new", tenant=other)
    assert core.said(act.Refuse) == []
    assert core.one(act.SessionEnded) == act.SessionEnded(SessionId("idle1"), "evicted")


def test_sessions_are_bounded() -> None:
    core = Steps(sessions_max=1)
    core.card()
    core.arrive("a", "one")
    core.arrive("b", "two")
    assert core.one(act.Refuse).reason == "capacity"
    core.arrive("c", "one")
    assert core.said(act.Refuse) == []


def test_session_of_another_tenant_does_not_exist() -> None:
    """F14: a foreign session answers like no session."""
    core = Steps()
    core.card()
    core.arrive("a", "mine")
    core.arrive("b", "mine", tenant=TenantId("thief"))
    assert core.one(act.Refuse).reason == "session_not_found"


def test_shutdown_refuses_new_turns_and_lets_running_ones_end() -> None:
    core = Steps()
    core.card()
    core.arrive("a")
    core.tell(ev.ShutdownRequested())
    assert core.said(act.CancelTurn) == []
    core.arrive("b")
    assert core.one(act.Refuse).reason == "draining"
    core.end("a")
    assert core.one(act.Settled).status == "stop"


def test_stalled_journal_refuses_new_turns_until_it_is_over() -> None:
    core = Steps()
    core.card()
    core.tell(ev.JournalStalled(True))
    core.arrive("a")
    assert len(core.said(act.Refuse)) == 1
    core.tell(ev.JournalStalled(False))
    core.arrive("b")
    assert len(core.said(act.Dispatch)) == 1


def test_waiting_too_long_is_lane_full_and_settles_nothing_used() -> None:
    core = Steps()
    core.card(slots=1, running_max=1)
    core.arrive("a", limit_tokens=180)
    core.arrive("b")
    core.timer(60 * SECOND_NS)
    refusal = core.one(act.Refuse)
    assert (refusal.turn, refusal.reason) == ("b", "lane_full")
    assert refusal.retry_after_ns > 0
    row = core.one(act.Settled)
    assert (row.turn, row.prompt_tokens, row.out_tokens, row.slot_ns) == ("b", 0, 0, 0)
    assert row.queue_ns == 60 * SECOND_NS


def test_an_estimate_refuses_nothing_that_may_fit() -> None:
    core = Steps()
    core.card(context_tokens=100)
    core.arrive("a", prompt_tokens=400, reuse_tokens=300, exact=False, least_tokens=99)
    order = core.one(act.Dispatch)
    assert order.limit_tokens == 1, "the books have room for one token more"
    core.end("a", prompt_tokens=60, out_tokens=1, kv_tokens=0)
    assert core.one(act.Settled).prompt_tokens == 60


def test_an_estimate_that_cannot_fit_is_refused_by_what_is_certain() -> None:
    core = Steps()
    core.card(context_tokens=100)
    core.arrive("a", prompt_tokens=400, exact=False, least_tokens=100)
    refusal = core.one(act.Refuse)
    assert refusal.reason == "context_length_exceeded"
    assert refusal.detail == "the prompt has at least 100 tokens, one session may hold 100"
