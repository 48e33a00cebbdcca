from __future__ import annotations

import math
from random import Random

import numpy as np
import pytest

from bedplate.core.limits import BATCH, INTERACTIVE, SHARED
from bedplate.core.units import SECOND_NS
from bedplate.twin.outcome import Outcome, SessionRow, TurnRow
from bedplate.twin.workload.form import Session, Spawn, Turn, Workload
from bedplate.twin.workload.transform import restart
from bench.baselines.catalogue import BASELINES
from bench.harness.run import BenchError
from bench.schedule_twin import burst, play
from bench.schedule_twin.cells import Answered, Cell
from bench.schedule_twin.costs import costs
from bench.schedule_twin.limits import Limits, earliest, limits
from bench.schedule_twin.loads import Size, density, first_turns, merged, places, rate_for
from bench.schedule_twin.measure import Found, measure
from bench.schedule_twin.sites import BOX, site
from bench.schedule_twin.traces import compare

AT = site(BOX)


def _sessions(count: int, seed: int, *, tokens: int = 6_000) -> Workload:
    random = Random(seed)
    lanes = (INTERACTIVE, SHARED, BATCH)
    found = []
    for number in range(count):
        turns = tuple(
            Turn(
                gap_ns=random.randint(0, 5 * SECOND_NS) if turn else 0,
                tool="tool" if turn else "",
                keep_tokens=-1 if random.random() < 0.8 else 500,
                new_tokens=random.randint(10, tokens),
                out_tokens=random.randint(1, 300),
            )
            for turn in range(random.randint(1, 5))
        )
        spawn = Spawn(number - 1, 0, joins=False) if number % 5 == 4 else None
        found.append(
            Session(f"s{number}", f"t{number % 3}", lanes[number % 3], "test", 0, spawn, turns)
        )
    return Workload("test", "drawn", tuple(found))


# Bounds and runs.


@pytest.mark.parametrize(("seed", "rate"), [(1, 0.2), (2, 2.0), (3, 20.0)])
def test_no_run_beats_its_bounds(seed: int, rate: float) -> None:
    """Idle, busy and far over what the box can carry: the twin never does better than may be."""
    workload = restart(_sessions(60, seed, tokens=20_000), rate, seed=seed)
    cost = costs(workload, AT.cards[0].profile)
    least = limits(workload, cost, AT)
    for policy in (None, BASELINES[1]):
        if policy is None:
            outcome = play.shipped(AT, workload, seed=seed)
        else:
            outcome = play.baseline(AT, workload, policy, seed=seed)
        found = measure(outcome, workload)
        assert found.sessions_done == found.sessions == 60
        assert found.good <= least.good + 1e-6
        assert found.session_s >= least.session_s * (1 - 1e-9)
        assert found.duration_s >= least.makespan_s * (1 - 1e-9)
        busy_ns = sum(card.busy_ns for card in outcome.cards)
        assert busy_ns >= cost.work_ns.sum() * (1 - 1e-9)


def test_a_lone_session_takes_what_it_costs_alone() -> None:
    """The bound is reached where nobody else is: a session on an empty box."""
    workload = _sessions(1, 3)
    cost = costs(workload, AT.cards[0].profile)
    outcome = play.shipped(AT, workload, seed=1)
    took = [row.end_ns - row.arrival_ns for row in outcome.turns]
    assert took == pytest.approx(list(cost.alone_ns), rel=1e-3)
    first = [row.first_ns - row.arrival_ns for row in outcome.turns]
    assert first == pytest.approx(list(cost.first_ns), rel=1e-3)


def test_partitions_are_alone_with_their_cards() -> None:
    workload = restart(_sessions(30, 5), 2.0, seed=1)
    workload = workload._replace(
        sessions=tuple(
            s._replace(spawn=None, tenant=f"t{i % 2}") for i, s in enumerate(workload.sessions)
        )
    )
    outcome = play.partitioned(AT, workload, BASELINES[1], seed=1)
    assert [row.session for row in outcome.sessions] == list(range(30))
    assert all(row.end_ns >= row.start_ns for row in outcome.sessions)
    homes: dict[str, set[str]] = {}
    for row in outcome.turns:
        homes.setdefault(workload.sessions[row.session].tenant, set()).add(row.card)
    assert homes["t0"].isdisjoint(homes["t1"])
    assert len({card.card for card in outcome.cards}) == len(AT.cards)


def test_baselines_run_in_one_lane_with_the_longest_patience_of_any() -> None:
    policy = play.one_lane(AT.policy)
    assert policy.lanes[SHARED].wait_max_ns == max(lane.wait_max_ns for lane in AT.policy.lanes)
    assert policy.lanes[SHARED].queue_max == sum(lane.queue_max for lane in AT.policy.lanes)
    workload = play.in_one_lane(_sessions(9, 1))
    assert {session.lane for session in workload.sessions} == {SHARED}


# Loads.


def test_density_is_half_of_all_over_the_shortest_time_that_has_it() -> None:
    at = np.array([0.0, 10.0, 11.0, 12.0, 50.0])
    amount = np.array([1.0, 2.0, 1.0, 2.0, 2.0])
    assert density(at, amount) == pytest.approx(4 / 2.0)  # 2 + 1 + 2 >= 4, from 10 to 12


def test_the_rate_makes_the_load_that_was_asked() -> None:
    workload = _sessions(400, 7)
    cost = costs(workload, AT.cards[0].profile)
    kv_tokens = sum(card.profile.kv_tokens for card in AT.cards)
    for share in (0.1, 0.3):
        at_rate = restart(workload, rate_for(workload, cost, AT, share), seed=1)
        release, _, _ = earliest(at_rate, cost)
        work = density(release, cost.work_ns) / len(AT.cards)
        area = density(release, cost.area) / kv_tokens
        assert max(work, area) == pytest.approx(share, rel=0.2)


def test_first_turns_leave_out_what_later_ones_spawn() -> None:
    turn = Turn(0, "", -1, 10, 10)
    sessions = (
        Session("root", "t", SHARED, "k", 0, None, (turn,) * 4),
        Session("early", "t", SHARED, "k", 0, Spawn(0, 1, joins=True), (turn,) * 3),
        Session("late", "t", SHARED, "k", 0, Spawn(0, 3, joins=True), (turn,)),
        Session("of late", "t", SHARED, "k", 0, Spawn(2, 0, joins=True), (turn,)),
        Session("of early", "t", SHARED, "k", 0, Spawn(1, 0, joins=False), (turn,)),
    )
    cut = first_turns(Workload("w", "w", sessions), 2).sessions
    assert [session.key for session in cut] == ["root", "early", "of early"]
    assert [len(session.turns) for session in cut] == [2, 2, 1]
    assert cut[2].spawn == Spawn(1, 0, joins=False)


def test_merged_workloads_keep_their_starts_and_names_apart() -> None:
    one, other = _sessions(5, 1), _sessions(5, 2)
    both = merged(one, other, "noise")
    assert len({session.key for session in both.sessions}) == 10
    assert sum(session.key.startswith("noise/") for session in both.sessions) == 5


def test_every_tenant_has_sessions_in_every_lane() -> None:
    found = places()
    lanes = {place.tenant: set[int]() for place in found}
    for place in found:
        lanes[place.tenant].add(place.lane)
    assert all(each == {INTERACTIVE, SHARED, BATCH} for each in lanes.values())
    assert Size(3).turns_max > 1_000


# Measures.


def _row(session: int, arrival_s: float, first_s: float, end_s: float, status: str) -> TurnRow:
    arrival_ns, first_ns, end_ns = (round(at * SECOND_NS) for at in (arrival_s, first_s, end_s))
    return TurnRow(session, 0, "c", arrival_ns, first_ns, end_ns, 0, 100, 0, 11, status)


def _workload(lanes: list[int]) -> Workload:
    turn = Turn(0, "", -1, 100, 11)
    return Workload(
        "w",
        "w",
        tuple(Session(f"s{i}", "t", lane, "k", 0, None, (turn,)) for i, lane in enumerate(lanes)),
    )


def test_good_turns_of_each_lane() -> None:
    workload = _workload([INTERACTIVE, INTERACTIVE, SHARED, SHARED, BATCH, BATCH])
    rows = [
        _row(0, 0, 1.9, 2.5, "stop"),
        _row(1, 0, 2.1, 2.5, "stop"),  # first token late
        _row(2, 0, 4.9, 6.0, "stop"),
        _row(3, 0, 1.0, 4.0, "stop"),  # 300 ms a token
        _row(4, 0, 800.0, 899.0, "stop"),
        _row(5, 0, 800.0, 901.0, "stop"),  # session over 15 minutes
    ]
    sessions = [SessionRow(i, 0, row.end_ns, 1, failed=False) for i, row in enumerate(rows)]
    outcome = Outcome("o", 1, duration_ns=901 * SECOND_NS, turns=rows, sessions=sessions)
    found = measure(outcome, workload)
    assert (found.good, found.offered) == (3, 6)
    assert found.interactive_p99_s == pytest.approx(2.098)


def test_who_never_ended_is_not_in_the_mean_but_in_the_count() -> None:
    workload = _workload([SHARED, SHARED])
    rows = [_row(0, 0, 1, 2, "stop"), _row(1, 0, -1, 5, "refused")]
    sessions = [
        SessionRow(0, 0, 2 * SECOND_NS, 1, failed=False),
        SessionRow(1, 0, -1, 0, failed=True),
    ]
    found = measure(Outcome("o", 1, turns=rows, sessions=sessions), workload)
    assert (found.sessions, found.sessions_done, found.session_s) == (2, 1, 2.0)


def _answered(
    policy: str, session_s: float, good: int = 90, done: int = 10, share: float = 1.0
) -> Answered:
    found = Found(good, 100, 10, done, session_s, 0.0, 1.0, 2.0, 2.0, 100.0, 1)
    cell = Cell("site", "trace", Size(10), share, policy, 1)
    return Answered(cell, found, Limits(100.0, 1.0, 1.0), 1.0, {})


def _busy() -> list[Answered]:
    return [_answered("bedplate", 99.0, share=0.8), _answered("a", 100.0, share=0.8)]


def test_claims_compare_with_the_best_baseline_of_each_load() -> None:
    claims = compare(
        [
            _busy(),
            [_answered("bedplate", 80.0, good=5), _answered("a", 100.0), _answered("b", 160.0)],
            [_answered("bedplate", 45.0, good=5), _answered("a", 90.0), _answered("b", 50.0)],
        ]
    )
    assert claims["goodput_vs_bound"].value == pytest.approx(0.9)
    mean = claims["session_time_vs_best_baseline"].value
    assert mean == pytest.approx(math.sqrt(0.8 * 0.9))
    assert claims["session_time_vs_any_baseline"].value == pytest.approx(0.99)
    assert claims["session_time_vs_any_baseline"].against == "a on site trace at 0.8"


def test_a_baseline_that_lost_sessions_has_no_mean_time_to_beat() -> None:
    ours = _answered("bedplate", 80.0)
    claims = compare([_busy(), [ours, _answered("a", 10.0, done=9), _answered("b", 100.0)]])
    assert claims["session_time_vs_best_baseline"].value == pytest.approx(0.8)
    with pytest.raises(BenchError, match="every baseline lost sessions"):
        compare([_busy(), [ours, _answered("a", 10.0, done=9)]])
    with pytest.raises(BenchError, match="1 sessions of the core did not end"):
        compare([_busy(), [_answered("bedplate", 80.0, done=9), _answered("a", 100.0)]])


# The burst.


def test_a_burst_begins_and_ends_when_it_says() -> None:
    starts = [0.0, 119.0, 120.0, 130.0, 720.0, 730.0]
    turn = Turn(0, "", -1, 10, 10)
    sessions = tuple(
        Session(f"s{i}", "t", SHARED, "k", round(at * SECOND_NS), None, (turn,))
        for i, at in enumerate(starts)
    )
    moved = burst.bursting(Workload("w", "w", sessions), 60.0)
    found = [session.start_ns / SECOND_NS for session in moved.sessions]
    assert found == pytest.approx([0.0, 119.0, 120.0, 121.0, 180.0, 190.0])


def test_recovery_is_the_end_of_the_last_bad_window() -> None:
    times = [float(at) for at in range(120)]
    times += [at / 10 for at in range(1200, 1800)]
    times += [float(at) for at in range(180, 300)]
    workload = _workload([SHARED] * len(times))
    workload = workload._replace(
        sessions=tuple(
            session._replace(start_ns=round(at * SECOND_NS))
            for session, at in zip(workload.sessions, times, strict=True)
        )
    )
    rows = [
        _row(i, at, at + (9.0 if 150 <= at < 203 else 1.0), at + 10.0, "stop")
        for i, at in enumerate(times)
    ]
    rows = [row._replace(end_ns=row.first_ns + SECOND_NS) for row in rows]
    found = burst.phases(rows, workload, 60.0)
    assert found.before == pytest.approx(1.0)
    assert found.during == pytest.approx(5.0)
    assert found.recovery_s == 30.0  # windows begin at 180; the one of 200 to 210 is the last bad
