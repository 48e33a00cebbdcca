"""What a fault cost, from runs that were written by hand: one turn ends every 100 ms."""

from __future__ import annotations

import pytest

from bedplate.core.limits import SHARED
from bedplate.core.units import SECOND_NS
from bedplate.twin.fault_cost import WINDOW, FaultCost, fault_costs
from bedplate.twin.faults import NEVER
from bedplate.twin.outcome import FaultRow, Outcome
from tests.unit.twin_report.builders import outcome, turn, workload

AT_S = 20
COUNT = 1_000


def run(bad: range, *, end_s: int = 30, cut: int = 3) -> Outcome:
    """A run of 100 s with a fault at 20 s, in which the turns of a range fail."""
    rows = [
        turn(at, 0, 100 * at, 100 * at + 40, 100 * at + 100)._replace(
            status="error" if at in bad else "stop", again_tokens=at
        )
        for at in range(COUNT)
    ]
    made = outcome(rows, [], duration=100 * COUNT)
    end_ns = end_s * SECOND_NS if end_s > 0 else NEVER
    made.faults = [FaultRow("card_lost", "c-0", AT_S * SECOND_NS, end_ns, cut, 0)]
    made.retries_ns = [19 * SECOND_NS, 21 * SECOND_NS, 39 * SECOND_NS, 90 * SECOND_NS]
    return made


def cost(made: Outcome) -> FaultCost:
    [found] = fault_costs(made, workload([SHARED] * COUNT, turns=1), slo_factor=1.0)
    return found


def test_goodput_is_back_when_the_running_average_is() -> None:
    """Turns 200 to 299 fail, those that end from 20.1 to 30 s; five bad ones of 50 are allowed."""
    found = cost(run(range(200, 300)))
    assert (found.effect, found.good_before, found.good_least) == ("back", 1.0, 0.0)
    # Turn 344 ends at 34.5 s and is the 45th good one of the last 50.
    assert found.back_s == pytest.approx(14.5)
    assert (found.at_s, found.until_s, found.turns_cut) == (20.0, 30.0, 3)
    assert found.client_retries == 1  # at 21 s; the next one is after 34.5 s
    assert found.tokens_again == sum(range(199, 345))
    assert "goodput back after 14.5 s (100% good before, 0% at the lowest)" in found.words()


def test_a_dip_counts_until_the_turns_after_the_fault_have_ended() -> None:
    """A dip of the 50 turns after its end is the fault's, a later one is not."""
    assert cost(run(range(300, 310))).effect == "back"
    later = cost(run(range(300 + WINDOW, 400)))
    assert (later.effect, later.back_s, later.good_least) == ("none", None, None)
    assert later.client_retries == 1
    assert "did not dip" in later.words()


def test_it_is_back_after_the_last_dip() -> None:
    """Ten bad turns as the fault begins, ten more within it."""
    made = run(range(200, 210))
    made.turns = [
        row._replace(status="error") if 250 <= at < 260 else row
        for at, row in enumerate(made.turns)
    ]
    # As turn 304 ends, at 30.5 s, five of the last 50 are bad.
    assert cost(made).back_s == pytest.approx(10.5)


def test_what_luck_does_is_no_dip() -> None:
    """Every second turn is good: 29 % or more of 50 are within three standard deviations."""
    made = run(range(0))
    made.turns = [
        row._replace(status="error") if at % 2 or 250 <= at < 270 else row
        for at, row in enumerate(made.turns)
    ]
    assert cost(made).effect == "none"  # 15 of 50
    made.turns[270] = made.turns[270]._replace(status="error")
    assert cost(made).effect == "back"  # 14 of 50


def test_few_bad_turns_are_no_dip() -> None:
    assert cost(run(range(200, 205))).effect == "none"
    assert cost(run(range(200, 206))).effect == "back"


def test_what_does_not_come_back_lasts() -> None:
    found = cost(run(range(200, COUNT), end_s=0))
    assert (found.effect, found.back_s, found.until_s) == ("lasting", None, None)
    assert found.client_retries == 3
    assert "for good" in found.words()
    assert "not back by the end of the run" in found.words()


def test_with_few_turns_before_nothing_is_said_of_goodput() -> None:
    made = run(range(0))
    made.turns = made.turns[199 - WINDOW + 1 :]  # 199 ended before 20 s
    assert cost(made).effect == "unknown"
    made = run(range(0))
    made.turns = made.turns[199 - WINDOW :]
    assert cost(made).effect == "none"


def test_a_fault_after_the_end_did_not_happen() -> None:
    made = run(range(0))
    made.faults = [FaultRow("tool_slow", "grep", 101 * SECOND_NS, NEVER, 0, 0)]
    found = cost(made)
    assert not found.happened
    assert "tool_slow grep at 101 s: the run was over before" in found.words()
    assert (found.client_retries, found.tokens_again) == (0, 0)


def test_a_lane_has_its_own_limits() -> None:
    """All first tokens come after 40 ms: within every limit, until those shrink."""
    made = run(range(0))
    load = workload([SHARED] * COUNT, turns=1)
    [found] = fault_costs(made, load, slo_factor=0.039 / 5)
    assert found.good_before == 0.0
