from __future__ import annotations

import pytest

from bedplate.core.limits import BATCH, INTERACTIVE, SHARED
from bedplate.twin.goodput import (
    count,
    session_is_good,
    slo_class,
    tpot_ns,
    turn_is_good,
)
from bedplate.twin.outcome import SessionRow
from tests.unit.twin_report.builders import MS, turn


def test_the_classes_are_those_of_the_project() -> None:
    assert slo_class(INTERACTIVE, 1.0) == (2_000 * MS, 100 * MS, 0)
    assert slo_class(SHARED, 1.0) == (5_000 * MS, 200 * MS, 0)
    assert slo_class(BATCH, 1.0) == (0, 0, 900_000 * MS)


def test_one_factor_stretches_all_of_them() -> None:
    assert slo_class(INTERACTIVE, 2.5) == (5_000 * MS, 250 * MS, 0)
    assert slo_class(BATCH, 0.1) == (0, 0, 90_000 * MS)


@pytest.mark.parametrize(
    ("first", "end", "good"),
    [
        (2_000, 3_000, True),  # both limits exactly: 10 gaps in 1 s
        (2_001, 3_001, False),  # first token 1 ms late
        (500, 1_501, False),  # 100.1 ms a token
        (500, 500, True),
    ],
)
def test_a_turn_must_meet_both_limits(first: int, end: int, *, good: bool) -> None:
    assert turn_is_good(turn(0, 0, 0, first, end), slo_class(INTERACTIVE, 1.0)) is good


def test_a_turn_of_one_token_has_no_pace() -> None:
    row = turn(0, 0, 0, 1_000, 9_000, out=1)
    assert tpot_ns(row) is None
    assert turn_is_good(row, slo_class(INTERACTIVE, 1.0))


@pytest.mark.parametrize("status", ["refused", "error", "cancelled", "unfinished", "lost"])
def test_a_turn_that_did_not_end_well_is_never_good(status: str) -> None:
    assert not turn_is_good(turn(0, 0, 0, 10, 20, status=status), slo_class(BATCH, 1.0))


@pytest.mark.parametrize("status", ["stop", "length", "tool_calls"])
def test_every_whole_answer_is(status: str) -> None:
    assert turn_is_good(turn(0, 0, 0, 10, 20, status=status), slo_class(INTERACTIVE, 1.0))


def test_a_batch_turn_may_wait_as_its_session_may() -> None:
    slo = slo_class(BATCH, 1.0)
    assert turn_is_good(turn(0, 0, 0, 800_000, 899_000), slo)
    assert session_is_good(SessionRow(0, 0, 900_000 * MS, 1, failed=False), 1, 1, slo)
    assert not session_is_good(SessionRow(0, 0, 900_001 * MS, 1, failed=False), 1, 1, slo)


def test_a_session_needs_all_its_turns() -> None:
    slo = slo_class(INTERACTIVE, 1.0)
    row = SessionRow(0, 0, 5_000 * MS, 2, failed=False)
    assert session_is_good(row, 2, 2, slo)
    assert not session_is_good(row, 1, 2, slo)
    assert not session_is_good(row._replace(failed=True), 2, 2, slo)
    assert not session_is_good(row._replace(end_ns=-1), 2, 2, slo)


def test_the_unit_is_the_turn_but_in_batch_the_session() -> None:
    judged = [True, True, False, True]
    shared = count(SHARED, judged, [True, False], turns_offered=6, duration_s=10.0)
    assert (shared.unit, shared.offered, shared.good, shared.share) == ("turns", 6, 3, 0.5)
    assert (shared.per_s, shared.sessions_per_s) == (0.3, 0.1)
    batch = count(BATCH, judged, [True, False], turns_offered=6, duration_s=10.0)
    assert (batch.unit, batch.offered, batch.good, batch.per_s) == ("sessions", 2, 1, 0.1)


def test_nothing_offered_is_no_goodput() -> None:
    nothing = count(SHARED, [], [], turns_offered=0, duration_s=0.0)
    assert nothing == ("turns", 0, 0, 0.0, 0.0, 0, 0.0)
