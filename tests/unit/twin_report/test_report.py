from __future__ import annotations

import json

import pytest

from bedplate.core.limits import INTERACTIVE, SHARED
from bedplate.twin.outcome import Outcome, SessionRow
from bedplate.twin.report import make_report
from tests.unit.twin_report.builders import MS, outcome, sample, site, turn, workload


def run() -> Outcome:
    """Two sessions of two turns: one interactive and in time, one in batch whose second fails."""
    return outcome(
        [
            turn(0, 0, 0, 500, 1_000, queue=100),
            turn(1, 0, 0, 700, 1_700),
            turn(0, 1, 2_000, 4_100, 5_000, queue=300),
            turn(1, 1, 2_000, -1, 3_000, status="error"),
        ],
        [
            SessionRow(0, 0, 5_000 * MS, 2, failed=False),
            SessionRow(1, 0, 3_000 * MS, 1, failed=True),
        ],
        samples=[
            sample(0, used=1_000),
            sample(1_000, used=4_000, running_kv=2_000, running=2),
            sample(4_000, used=8_000, running_kv=3_000, running=1),
            sample(10_000),
        ],
    )


def test_lanes_are_added_up_apart_and_together() -> None:
    report = make_report(run(), workload(), site())
    assert [lane.lane for lane in report.lanes] == ["interactive", "batch"]
    interactive, batch = report.lanes
    assert (interactive.sessions, interactive.sessions_done) == (1, 1)
    assert (interactive.turns, interactive.turns_done) == (2, 2)
    assert (batch.turns, batch.turns_done, batch.sessions_done) == (2, 1, 0)
    overall = report.overall
    assert (overall.sessions, overall.turns, overall.turns_done) == (2, 4, 3)
    assert report.statuses == {"error": 1, "stop": 3}


def test_goodput_by_lane() -> None:
    """The second interactive turn had its first token after 2.1 s, so its session is not good."""
    interactive, batch = make_report(run(), workload(), site()).lanes
    assert (interactive.goodput.good, interactive.goodput.offered) == (1, 2)
    assert interactive.goodput.per_s == pytest.approx(0.1)
    assert interactive.goodput.sessions_good == 0
    assert (batch.goodput.good, batch.goodput.offered) == (0, 1)


def test_a_factor_lets_slow_cards_count() -> None:
    report = make_report(run(), workload(), site(), slo_factor=1.1)
    assert report.lanes[0].goodput.good == 2
    assert report.slo_factor == 1.1
    overall = report.overall.goodput
    assert (overall.unit, overall.good, overall.offered) == ("sessions", 1, 2)
    assert overall.per_s == pytest.approx(0.1)


def test_times_are_of_what_ended_well() -> None:
    lane = make_report(run(), workload(), site()).lanes[0]
    ttft, session, queue = lane.times.ttft, lane.times.session, lane.times.queue
    assert ttft is not None
    assert session is not None
    assert queue is not None
    assert ttft.mean == pytest.approx(1.3)
    assert (ttft.n, ttft.most) == (2, 2.1)
    assert (session.n, session.mean) == (1, 5.0)
    assert queue.mean == pytest.approx(0.2)
    assert make_report(run(), workload(), site()).lanes[1].times.session is None


def test_tokens_and_hit_share() -> None:
    tokens = make_report(run(), workload(), site()).overall.tokens
    assert (tokens.prompt, tokens.cached, tokens.out) == (300, 120, 33)
    assert tokens.hit_share == pytest.approx(0.4)


def test_occupancy_holds_each_sample_until_the_next() -> None:
    """(1,000 × 1 s + 4,000 × 3 s + 8,000 × 6 s) ÷ 10 s ÷ 10,000 tokens."""
    report = make_report(run(), workload(), site())
    assert report.kv_used.mean == pytest.approx(0.61)
    assert (report.kv_used.total, report.kv_used.peak) == (10_000, 0.8)
    assert report.kv_running.peak == 0.3
    assert report.pool.mean == pytest.approx(0.25)


def test_cards_and_moves() -> None:
    report = make_report(run(), workload(), site())
    (card,) = report.cards
    assert (card.busy, card.stalled, card.up_s) == (0.6, 0.1, 10.0)
    assert report.moves == (3, 2, 5_000)


def test_speed_is_of_the_simulator() -> None:
    speed = make_report(run(), workload(), site()).speed
    assert (speed.requests, speed.events, speed.wall_s) == (4, 60, 0.5)
    assert (speed.requests_per_s, speed.events_per_s) == (8.0, 120.0)
    assert (speed.events_per_request, speed.times_real) == (15.0, 20.0)


def test_turns_that_never_arrived_were_offered_and_are_not_good() -> None:
    made = outcome(
        [turn(0, 0, 0, 100, 200), turn(0, 1, -1, -1, -1, status="unfinished")],
        [SessionRow(0, 0, -1, 1, failed=False)],
    )
    (lane,) = make_report(made, workload([SHARED]), site()).lanes
    assert (lane.turns, lane.turns_offered) == (1, 2)
    assert (lane.goodput.offered, lane.goodput.good, lane.goodput.share) == (2, 1, 0.5)
    assert lane.goodput.sessions_good == 0


def test_the_share_of_sessions_whose_times_are_known() -> None:
    report = make_report(run(), workload(), site())
    assert [lane.sessions_done_share for lane in report.lanes] == [1.0, 0.0]
    assert report.overall.sessions_done_share == 0.5


def test_tokens_that_were_computed_again_are_added_up() -> None:
    rows = [turn(0, 0, 0, 100, 200)._replace(again_tokens=30), turn(0, 1, 300, 400, 500)]
    made = outcome(rows, [SessionRow(0, 0, 500 * MS, 2, failed=False)])
    assert make_report(made, workload([SHARED]), site()).overall.tokens.again == 30


def test_prompts_that_no_card_takes_are_told_from_other_refusals() -> None:
    longer = turn(0, 0, 0, -1, 10, status="refused")._replace(prompt_tokens=8_000)
    other = turn(1, 0, 0, -1, 10, status="refused")._replace(prompt_tokens=7_999)
    report = make_report(outcome([longer, other], []), workload(), site())
    assert (report.too_long, report.context_tokens) == (1, 8_000)


def test_an_empty_run_has_a_report() -> None:
    report = make_report(outcome([], [], duration=0), workload([INTERACTIVE]), site())
    assert report.lanes == ()
    assert report.overall.times.ttft is None
    assert report.bottleneck.binds == "nothing"


def test_the_document_is_json() -> None:
    found = json.loads(json.dumps(make_report(run(), workload(), site()).document()))
    assert found["digest"] == "ab" * 32
    assert found["lanes"][0]["goodput"]["unit"] == "turns"
    assert found["lanes"][1]["times"]["session"] is None
    assert found["bottleneck"]["pressures"][0]["resource"] == "compute"
    assert found["cards"][0]["busy"] == 0.6
