"""Agent sessions on two real cards: ours, plain servers, routers, and the simplest thing."""

from __future__ import annotations

from bench.harness.run import Bench
from bench.schedule import contest, tenants

BENCH = Bench(
    name="schedule-real",
    summary="agent sessions on two real cards: goodput and session times against peers",
    parts=(*contest.PARTS, *tenants.PARTS),
)
