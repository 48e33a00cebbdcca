"""A new session that would wait too long is refused at once; one under way is not."""

from __future__ import annotations

from bedplate.core import actions as act
from bedplate.core import demand
from bedplate.core.ids import ModelId, SessionId, TenantId, TurnId
from bedplate.core.snapshot import restore, snapshot
from bedplate.core.units import SECOND_NS
from tests.unit.core.steps import LANE, Steps

TENANT = TenantId("t")
LANES = (LANE._replace(queue_max=1000, refuse_ns=5 * SECOND_NS),) * 3


def wait_ns(core: Steps, lane: int) -> int:
    """How long a session of the tenant that asks now would wait."""
    state = core.base.state
    return demand.wait_ns(state.groups[ModelId("m")], lane, state.tenant(TENANT), core.now)


def crowded() -> Steps:
    """One card that takes a second a turn, one running, and as many waiting as may."""
    core = Steps(lanes=LANES)
    core.card(slots=1, running_max=1)
    core.arrive("warm", "w")
    core.end("warm")  # a second on the card
    core.stored(core.one(act.StoreKv))
    core.arrive("runs")
    for number in range(6):
        core.arrive(f"w{number}")
        assert not core.said(act.Refuse)
    return core


def test_a_session_that_would_wait_too_long_is_refused_with_the_time_to_come_back() -> None:
    core = crowded()
    assert wait_ns(core, 0) == 0
    assert wait_ns(core, 1) == 6 * SECOND_NS
    core.arrive("late")
    refusal = core.one(act.Refuse)
    assert (refusal.reason, refusal.retry_after_ns) == ("lane_full", SECOND_NS)
    assert "about 6.0 s for its first card" in refusal.detail
    assert "shared refuses one beyond 5.0 s (refuse_seconds)" in refusal.detail


def test_lanes_below_count_for_nobody_above_and_a_session_under_way_goes_on() -> None:
    core = crowded()
    core.arrive("above", lane=0)
    assert not core.said(act.Refuse)
    core.arrive("again", "w")
    assert not core.said(act.Refuse)


def test_what_left_the_line_is_not_waited_for() -> None:
    core = crowded()
    for number in range(6):
        core.cancel(f"w{number}")
    group = core.base.state.groups[ModelId("m")]
    assert wait_ns(core, 2) == 0
    assert group.waiting_turns == group.waiting_tokens == [0, 0, 0]


def test_a_flood_of_one_tenant_shuts_out_that_tenant_only() -> None:
    core = crowded()
    core.arrive("late")
    assert core.said(act.Refuse)
    core.arrive("other", tenant=TenantId("u"))
    assert not core.said(act.Refuse)


def test_a_refused_session_comes_back_to_its_place() -> None:
    core = crowded()
    core.arrive("early", "early")
    assert core.said(act.Refuse)
    core.timer(SECOND_NS)
    core.cancel("w0")
    core.arrive("later", "later")
    assert not core.said(act.Refuse), "there is a place again"
    core.arrive("early-again", "early")
    assert not core.said(act.Refuse), "who asked later does not count against it"
    core.arrive("latest", "latest")
    assert core.said(act.Refuse)
    state = core.base.state
    order = [turn.id for turn in state.groups[ModelId("m")].queues[1][TENANT]]
    assert order.index(TurnId("early-again")) < order.index(TurnId("later"))


def test_the_place_is_kept_for_a_time_and_in_a_snapshot() -> None:
    core = crowded()
    core.arrive("early", "early")
    asked_ns = core.now
    core.base = restore(snapshot(core.base))
    payer = core.base.state.tenant(TENANT)
    at_ns = asked_ns + demand.TURNED_AWAY_NS
    assert demand.asked_ns(payer, SessionId("early"), at_ns) == asked_ns
    assert demand.asked_ns(payer, SessionId("early"), at_ns + 1) == at_ns + 1
    core.now = at_ns + 1
    core.arrive("late", "late")
    assert list(payer.turned_away) == ["late"]


def test_places_are_kept_for_so_many_sessions() -> None:
    core = crowded()
    payer = core.base.state.tenant(TENANT)
    for number in range(demand.TURNED_AWAY_MAX + 1):
        core.arrive(f"s{number}", f"s{number}")
        assert core.said(act.Refuse)
    assert len(payer.turned_away) == demand.TURNED_AWAY_MAX
    assert "s0" not in payer.turned_away
    core.arrive("again", "s1")
    assert next(iter(payer.turned_away)) == "s1", "asking again neither renews nor loses it"


def test_a_session_that_is_let_in_is_not_known_as_refused() -> None:
    core = crowded()
    core.arrive("early", "early")
    for number in range(6):
        core.cancel(f"w{number}")
    core.arrive("again", "early")
    assert not core.said(act.Refuse)
    assert not core.base.state.tenant(TENANT).turned_away
