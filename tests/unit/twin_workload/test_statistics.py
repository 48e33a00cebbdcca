"""Statistics of workloads small enough to be worked out by hand."""

from __future__ import annotations

import pytest

from bedplate.core.limits import BATCH, INTERACTIVE
from bedplate.twin.workload.form import Session, Spawn, Turn, Workload
from bedplate.twin.workload.statistics import Group, Spread, spread, statistics

S = 10**9


def session(start_s: float, *turns: Turn, spawn: Spawn | None = None, lane: int = 0) -> Session:
    return Session("k", "t", lane, "kind", round(start_s * S), spawn, turns)


def test_sizes_and_shares() -> None:
    turns = (Turn(0, "", -1, 100, 10), Turn(2 * S, "sql", -1, 40, 20), Turn(3 * S, "", 30, 70, 5))
    found = statistics(Workload("w", "s", (session(0, *turns),)))
    # Prompts 100, 150, 30 + 70; kept 0, 110, 30.
    assert found.prompt_tokens == Spread(3, 350 / 3, 100, 150, 150, 150)
    assert found.reusable_share == pytest.approx(140 / 350)
    assert found.new_tokens.mean == pytest.approx(210 / 3)
    assert found.context_tokens.max == 105
    assert (found.tool_gap_s.n, found.tool_gap_s.mean) == (1, 2.0)
    assert (found.other_gap_s.n, found.other_gap_s.mean) == (1, 3.0)
    assert found.least_s.max == 5.0


def test_pace_of_roots() -> None:
    starts = (0, 1, 3, 6)  # gaps 1, 2, 3: mean 2, standard deviation √(2/3)
    sessions = tuple(session(at, Turn(0, "", -1, 1, 1)) for at in starts)
    found = statistics(Workload("w", "s", sessions))
    assert found.starts_per_s == pytest.approx(0.5)
    assert found.starts_cv == pytest.approx((2 / 3) ** 0.5 / 2)
    assert (found.span_s, found.sessions_at_once) == (6.0, 1)


def test_sessions_at_once_and_sub_agents() -> None:
    child = session(
        1, Turn(0, "", -1, 1, 1), Turn(4 * S, "", -1, 1, 1), spawn=Spawn(0, 0, joins=True)
    )
    later = session(2, Turn(0, "", -1, 1, 1), spawn=Spawn(0, 1, joins=False), lane=BATCH)
    root = session(0, Turn(0, "", -1, 1, 1), Turn(3 * S, "", -1, 1, 1))
    other = session(9, Turn(0, "", -1, 1, 1), Turn(3 * S, "", -1, 1, 1), lane=INTERACTIVE)
    found = statistics(Workload("w", "s", (root, child, later, other)))
    # The child ends at 1 + 4, the root's second turn comes at 8, and the third session at 10.
    assert found.least_s == Spread(2, 6.5, 3.0, 10.0, 10.0, 10.0)
    assert found.sessions_at_once == 2
    assert (found.sessions, found.roots) == (4, 2)
    assert found.lanes == (Group("batch", 1, 1), Group("interactive", 3, 6))


def test_percentiles_are_nearest_rank() -> None:
    found = spread(range(1, 201))
    assert (found.p50, found.p90, found.p99, found.max) == (100, 180, 198, 200)
    assert spread([7]) == Spread(1, 7, 7, 7, 7, 7)
    assert spread([]).n == 0
