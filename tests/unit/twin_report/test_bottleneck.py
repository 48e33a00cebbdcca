"""Each verdict from an outcome that was written so that one thing binds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bedplate.perf.profile import LinearCost
from bedplate.twin.bottleneck import doubling_gain, find_bottleneck, time_parts
from bedplate.twin.outcome import Outcome, SessionRow, TurnRow
from tests.unit.twin_report.builders import GIB, MS, outcome, sample, site, turn


def waiting(
    *,
    running: int = 1,
    running_kv: int = 0,
    used: int = 0,
    moves: int = 0,
    why: tuple[tuple[str, int], ...] = (),
) -> Outcome:
    """A run whose turns wait half of their time; at two of three instants somebody waits."""
    first, second = (
        sample(at, waiting=n, running=running, running_kv=running_kv, used=used, moves=moves)
        for at, n in ((0, 3), (5_000, 1))
    )
    return outcome(
        [turn(at, 0, 0, 6_000, 10_000, queue=5_000) for at in range(4)],
        [SessionRow(at, 0, 10_000 * MS, 1, failed=False) for at in range(4)],
        samples=[
            first._replace(why=why),
            second,
            sample(9_000, waiting=0, running=0, moves=1),
        ],
    )


def test_parts_of_the_time_of_sessions() -> None:
    """2 s of gap, 1 s of queue, 3 s of prefill, 4 s of decoding."""
    rows = [
        turn(0, 0, 0, 2_000, 4_000, queue=500),
        turn(1, 0, 0, -1, -1, status="unfinished"),
        turn(0, 1, 6_000, 8_000, 10_000, queue=500),
    ]
    assert time_parts(rows) == pytest.approx((0.2, 0.1, 0.0, 0.3, 0.4))


def test_time_until_the_last_try_is_no_prefill() -> None:
    """2 s of tries, 1 s of queue, 1 s of prefill, 2 s of decoding; 4 s of a turn that failed."""
    rows = [
        turn(0, 0, 0, 4_000, 6_000, queue=1_000)._replace(retry_ns=2_000 * MS),
        turn(1, 0, 0, -1, 4_000, status="refused"),
    ]
    assert time_parts(rows) == pytest.approx((0.0, 0.1, 0.6, 0.1, 0.2))


def test_without_queues_tools_bind_when_they_take_half() -> None:
    rows = [turn(0, 0, 0, 100, 1_000), turn(0, 1, 9_000, 9_100, 10_000)]
    found = find_bottleneck(outcome(rows, []), site())
    assert found.binds == "tools"
    assert "tool gaps" in found.why


def test_without_queues_and_tools_it_is_the_turn_itself() -> None:
    rows = [turn(0, 0, 0, 4_000, 9_000), turn(0, 1, 9_500, 9_600, 10_000)]
    assert find_bottleneck(outcome(rows, []), site()).binds == "compute"


def test_kv_room_binds_when_running_turns_fill_it() -> None:
    found = find_bottleneck(waiting(running=2, running_kv=9_500), site())
    assert found.binds == "kv_room"
    assert "95%" in found.why


def test_slots_bind_where_a_larger_batch_is_nearly_free() -> None:
    found = find_bottleneck(waiting(running=4), site(weights_ns=8 * MS))
    assert found.binds == "slots"


def test_compute_binds_where_a_larger_batch_takes_as_much_longer() -> None:
    found = find_bottleneck(waiting(running=4), site(weights_ns=0, token_ns=8 * MS))
    assert found.binds == "compute"


def test_the_link_binds_when_it_is_full_while_turns_wait() -> None:
    """1 MB/s carries 6.67 MB in the 6.67 s of waiting; 6 of 7 moves fall into them."""
    run = waiting(running=4, moves=3)
    run.cards = [run.cards[0]._replace(moved_bytes=7_000_000)]
    found = find_bottleneck(run, site())
    assert found.binds == "link"
    assert "90%" in found.why
    elsewhere = waiting(running=4, moves=0)  # all seen moves are where nobody waits
    elsewhere.cards = run.cards
    assert find_bottleneck(elsewhere, site()).binds != "link"


def test_kv_at_rest_binds_where_there_is_no_pool() -> None:
    run = waiting(running=1, used=9_500)
    run.pool_total_bytes = 0
    assert find_bottleneck(run, site(pool_bytes=0)).binds == "kv_room"


def test_a_full_pool_binds() -> None:
    run = waiting(running=1, used=9_500)
    run.samples = [each._replace(pool_bytes=GIB) for each in run.samples]
    assert find_bottleneck(run, site()).binds == "pool"


@pytest.mark.parametrize(
    ("why", "binds", "said"),
    [
        ((("tenant_running_max", 3),), "limits", "tenant's running_max"),
        ((("ready", 30), ("tenant_running_max", 3)), "limits", "100% wait"),
        ((("loading", 2), ("no_room", 1)), "link", "67% wait for a KV move"),
        ((("loading", 1), ("no_room", 2)), "unclear", "no card has enough free KV blocks"),
        ((("admission", 3),), "pool", "100% are not admitted"),
        ((("home_busy", 3),), "unclear", "its KV is only on one card"),
        ((("ready", 3),), "unclear", "none was seen first in line"),
    ],
)
def test_with_room_everywhere_it_is_what_turns_wait_for(
    why: tuple[tuple[str, int], ...], binds: str, said: str
) -> None:
    found = find_bottleneck(waiting(running=1, why=why), site())
    assert found.binds == binds
    assert said in found.why


def test_without_a_pool_sessions_are_not_admitted_for_want_of_kv_room() -> None:
    run = waiting(running=1, why=(("admission", 3),))
    run.pool_total_bytes = 0
    assert find_bottleneck(run, site(pool_bytes=0)).binds == "kv_room"


@pytest.mark.parametrize(
    ("failures", "binds"),
    [
        ({"no_engine": 5, "lane_full": 4}, "cards"),
        ({"lost": 5, "no_engine": 4}, "gateway"),
        ({"capacity": 3, "quota_exceeded": 3, "no_engine": 4}, "limits"),
        ({"engine_lost": 5, "no_engine": 4}, "unclear"),
    ],
)
def test_turns_that_wait_between_tries_wait_for_what_refused_them(
    failures: dict[str, int], binds: str
) -> None:
    run = waiting(running=1)
    run.turns = [row._replace(queue_ns=0, retry_ns=5_000 * MS) for row in run.turns]
    run.failures = failures
    assert find_bottleneck(run, site()).binds == binds


def test_every_resource_is_named_with_its_evidence() -> None:
    found = find_bottleneck(waiting(running=4), site())
    shares = {each.resource: each.share for each in found.pressures}
    assert list(shares) == ["compute", "slots", "kv_room", "pool", "link", "tools"]
    assert shares["compute"] == pytest.approx(0.5)  # 6 s busy, 1 s of it stalled, of 10
    assert shares["slots"] == 1.0
    assert shares["pool"] == 0.25
    assert all(each.evidence for each in found.pressures)


def test_doubling_weighs_prefill_against_decoding() -> None:
    """40 tokens of a batch of 4 take 80 ms at 8 ms a step, in a batch of 8 40 ms."""
    rows = [turn(at, 0, 0, 10, 100, out=10) for at in range(4)]
    free = [replace_cached(row, 100) for row in rows]
    assert doubling_gain(free, site(weights_ns=8 * MS)) == pytest.approx(2.0)
    # 4 prompts of 60 tokens that were not cached: 0.6 of a step of 8 ms each, 19.2 ms in all.
    assert doubling_gain(rows, site(weights_ns=8 * MS)) == pytest.approx((80 + 19.2) / (40 + 19.2))
    assert doubling_gain([], site()) == 1.0


def replace_cached(row: TurnRow, tokens: int) -> TurnRow:
    return row._replace(cached_tokens=tokens)


def test_the_profile_of_each_card_counts() -> None:
    """One card reads its weights once a step, on the other each sequence takes its own time."""
    base = site(cards=2)
    slow = LinearCost(0.0, 0.0, 0.0, 8.0 * MS, 0.0, 0.0)
    second = replace(base.cards[1], profile=replace(base.cards[1].profile, step=slow))
    mixed = replace(base, cards=(base.cards[0], second))
    here = turn(0, 0, 0, 10, 100)._replace(cached_tokens=100)
    there = here._replace(card="c-1")
    assert doubling_gain([here], mixed) == pytest.approx(2.0)
    assert doubling_gain([there], mixed) == pytest.approx(1.0)
