"""What changes a workload, and what stays."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bedplate.core.limits import BATCH
from bedplate.errors import InvalidRequest
from bedplate.twin.workload.form import Session, Spawn, Turn, Workload
from bedplate.twin.workload.native import check
from bedplate.twin.workload.transform import (
    Place,
    assign,
    clamp_gaps,
    clamp_tokens,
    repeat,
    restart,
    scale_rate,
    scale_tokens,
    share_openings,
    take,
)

S = 10**9
TURNS = (Turn(0, "", -1, 100, 10, 50), Turn(8 * S, "sql", -1, 41, 20), Turn(3 * S, "", 30, 70, 5))


def workload() -> Workload:
    """Three roots; the first one's sub-agent stands behind the second, the third has one too."""

    def one(key: str, start_s: int, spawn: Spawn | None = None) -> Session:
        return Session(key, "t", 0, "kind", start_s * S, spawn, TURNS)

    found = Workload(
        "w",
        "by hand",
        (
            one("a", 0),
            one("b", 4),
            one("a/1", 9, Spawn(0, 1, joins=True)),
            one("a/2", 1, Spawn(2, 2, joins=False)),
            one("c", 8),
            one("c/1", 1, Spawn(4, 0, joins=False)),
        ),
    )
    check(found)
    return found


def starts(found: Workload) -> list[float]:
    return [session.start_ns / S for session in found.sessions if session.spawn is None]


def test_the_rate_changes_and_gaps_stay() -> None:
    found = scale_rate(workload(), 2.0)
    check(found)
    assert starts(found) == [0, 2, 4]
    assert found.sessions[2].start_ns == 9 * S
    assert all(session.turns == TURNS for session in found.sessions)
    assert found.source == "by hand; 2 times as fast"


def test_starts_are_drawn_in_the_same_order() -> None:
    found = restart(workload(), 5.0, seed=1)
    check(found)
    assert [s.key for s in found.sessions] == [s.key for s in workload().sessions]
    assert restart(workload(), 5.0, seed=1) == found != restart(workload(), 5.0, seed=2)
    many = Workload("w", "s", tuple(workload().sessions[0] for _ in range(2_000)))
    assert starts(restart(many, 5.0, seed=3))[-1] == pytest.approx(400, rel=0.1)


def test_taking_keeps_what_a_root_spawns_and_nothing_else() -> None:
    found = take(workload(), 1)
    check(found)
    assert [session.key for session in found.sessions] == ["a", "a/1", "a/2"]
    assert [session.spawn for session in found.sessions] == [
        None,
        Spawn(0, 1, joins=True),
        Spawn(1, 2, joins=False),
    ]
    assert take(workload(), 3) == workload()


def test_repeating_draws_whole_families_evenly() -> None:
    found = repeat(workload(), 7, seed=1)
    check(found)
    roots = [session.key.partition("#")[0] for session in found.sessions if session.spawn is None]
    assert len(roots) == 7
    assert all(2 <= roots.count(key) <= 3 for key in "abc")
    assert len({session.key for session in found.sessions}) == len(found.sessions)
    assert set(starts(found)) == {0}


def test_places_are_given_in_turn_and_inherited() -> None:
    found = assign(workload(), [Place("x", BATCH), Place("", -1)])
    assert [(session.key, session.tenant, session.lane) for session in found.sessions] == [
        ("a", "x", BATCH),
        ("b", "t", 0),
        ("a/1", "x", BATCH),
        ("a/2", "x", BATCH),
        ("c", "x", BATCH),
        ("c/1", "x", BATCH),
    ]
    assert found.source.endswith("given to x/batch, own tenant/own lane")


def test_sizes_are_scaled_and_stay_positive() -> None:
    found = scale_tokens(workload(), 0.05)
    check(found)
    assert found.sessions[0].turns == (
        Turn(0, "", -1, 5, 1, 2),
        Turn(8 * S, "sql", -1, 2, 1),
        Turn(3 * S, "", 2, 4, 1),
    )


def test_long_turns_are_cut_to_a_context() -> None:
    found = clamp_tokens(workload(), 120)
    check(found)
    # 110 held; of 41 + 20 behind them 59 fit. Then 30 + 70 + 5 of 120 fit as they are.
    assert found.sessions[0].turns == (TURNS[0], Turn(8 * S, "sql", 59, 41, 20), TURNS[2])
    tight = clamp_tokens(workload(), 12)
    assert tight.sessions[0].turns[0] == Turn(0, "", 0, 6, 6, 50)


def test_gaps_are_cut() -> None:
    found = clamp_gaps(workload(), 5.0)
    assert [turn.gap_ns for turn in found.sessions[0].turns] == [0, 5 * S, 3 * S]
    assert found.sessions[2].start_ns == 5 * S
    assert starts(found) == [0, 4, 8]
    assert clamp_gaps(workload(), 1e300).sessions == workload().sessions


def test_what_makes_no_sense_is_refused() -> None:
    nan = float("nan")
    changes: list[Callable[[], Workload]] = [
        lambda: scale_rate(workload(), 0),
        lambda: scale_rate(workload(), nan),
        lambda: restart(workload(), -1.0, seed=1),
        lambda: take(workload(), 0),
        lambda: repeat(Workload("w", "s", ()), 3, seed=1),
        lambda: assign(workload(), []),
        lambda: assign(workload(), [Place("x", 3)]),
        lambda: scale_tokens(workload(), float("inf")),
        lambda: clamp_tokens(workload(), 1),
        lambda: clamp_gaps(workload(), 0.0),
        lambda: scale_rate(workload(), 1e-12),
        lambda: scale_rate(workload(), 1e-300),
        lambda: restart(workload(), 1e-12, seed=1),
        lambda: restart(workload(), 1e-300, seed=1),
        lambda: scale_tokens(workload(), 1e8),
        lambda: scale_tokens(workload(), 1e307),
    ]
    for change in changes:
        with pytest.raises(InvalidRequest):
            change()


def test_openings_are_of_a_kind_and_only_where_something_follows() -> None:
    found = share_openings(workload(), 60)
    check(found)
    assert {(one.prefix, one.prefix_tokens) for one in found.sessions} == {("kind", 60)}
    assert {(one.prefix, one.prefix_tokens) for one in share_openings(found, 100).sessions} == {
        ("", 0)
    }


def test_openings_shrink_with_their_prompts_and_go_where_these_get_shorter() -> None:
    found = share_openings(workload(), 60)
    assert {one.prefix_tokens for one in scale_tokens(found, 0.5).sessions} == {30}
    assert {one.prefix_tokens for one in scale_tokens(found, 0.001).sessions} == {0}
    assert {one.prefix for one in clamp_tokens(found, 50).sessions} == {""}
    with pytest.raises(InvalidRequest):
        share_openings(workload(), 0)
