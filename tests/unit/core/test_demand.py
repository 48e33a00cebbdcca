"""A new session that would wait too long is refused at once; one under way is not."""

from __future__ import annotations

from bedplate.core import actions as act
from bedplate.core import demand
from bedplate.core.ids import ModelId, TenantId
from bedplate.core.units import SECOND_NS
from tests.unit.core.steps import LANE, Steps

TENANT = TenantId("t")
LANES = (LANE._replace(queue_max=1000, refuse_ns=5 * SECOND_NS),) * 3


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
    group = core.base.state.groups[ModelId("m")]
    assert demand.wait_ns(group, 0, TENANT) == 0
    assert demand.wait_ns(group, 1, TENANT) == 6 * SECOND_NS
    core.arrive("late")
    refusal = core.one(act.Refuse)
    assert (refusal.reason, refusal.retry_after_ns) == ("lane_full", SECOND_NS)
    assert "6 s" in refusal.detail


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
    assert demand.wait_ns(group, 2, TENANT) == 0
    assert group.waiting_turns == group.waiting_tokens == [0, 0, 0]


def test_a_flood_of_one_tenant_shuts_out_that_tenant_only() -> None:
    core = crowded()
    core.arrive("late")
    assert core.said(act.Refuse)
    core.arrive("other", tenant=TenantId("u"))
    assert not core.said(act.Refuse)
