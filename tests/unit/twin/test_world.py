"""A run drives the core faithfully: causal replay, limits, retries, and books that agree."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from bedplate.core.limits import INTERACTIVE, default_policy
from bedplate.core.units import SECOND_NS
from bedplate.errors import ConfigError
from bedplate.perf.profile import Batching, LinearCost, MoveCost
from bedplate.twin.outcome import Outcome, TurnRow
from bedplate.twin.run import PoolSpec, Site, simulate
from bedplate.twin.workload.form import Spawn, Turn, Workload
from tests.unit.twin.sites import MS, POOL, agents, card_profile, session, site, workload


def of(outcome: Outcome, index: int) -> list[TurnRow]:
    return [row for row in outcome.turns if row.session == index]


def test_a_lone_turn_takes_the_time_that_its_profile_says() -> None:
    load = workload(session("a", (0, 300, 11)))
    out = simulate(site(1, begin_ns=3.0 * MS, end_ns=2.0 * MS), load, seed=1)
    # Two steps of prompt: 256 tokens, then 44, at 40 µs a token, not below 8 ms, 2 ms launch.
    pairs = [256 * 257 // 2, 256 * 44 + 44 * 45 // 2]
    first_ns = 2 * 2 * MS + 256 * 40_000 + 8 * MS + sum(pairs)
    decode_ns = 10 * 10 * MS + 50 * sum(301 + i for i in range(10))
    [row] = out.turns
    assert row.arrival_ns == 0
    assert row.first_ns == 3 * MS + first_ns
    assert row.end_ns == row.first_ns + decode_ns + 2 * MS
    assert (row.status, row.prompt_tokens, row.cached_tokens, row.out_tokens) == (
        "stop",
        300,
        0,
        11,
    )
    assert out.duration_ns == row.end_ns
    assert [c.busy_ns for c in out.cards] == [first_ns + decode_ns]


def test_a_session_goes_on_after_the_end_and_the_gap_and_reuses_its_context() -> None:
    out = simulate(site(1), workload(session("a", (0, 200, 5), (700, 50, 5), (90, 20, 5))), seed=1)
    first, second, third = out.turns
    assert second.arrival_ns == first.end_ns + 700 * MS
    assert third.arrival_ns == second.end_ns + 90 * MS
    # The last token of an answer was sampled, and is computed with the next prompt.
    assert [row.prompt_tokens for row in out.turns] == [200, 255, 280]
    assert [row.cached_tokens for row in out.turns] == [0, 204, 259]
    [done] = out.sessions
    assert (done.start_ns, done.end_ns, done.turns_done, done.failed) == (0, third.end_ns, 3, False)


def test_a_cut_history_reuses_what_it_kept() -> None:
    edited = session("a", (0, 200, 5), (0, 50, 5))
    turns = (edited.turns[0], edited.turns[1]._replace(keep_tokens=120))
    out = simulate(site(1), workload(edited._replace(turns=turns)), seed=1)
    assert (out.turns[1].prompt_tokens, out.turns[1].cached_tokens) == (170, 120)
    whole = simulate(site(1, can_cut=False), workload(edited._replace(turns=turns)), seed=1)
    assert whole.turns[1].cached_tokens == 0


def test_limits_cut_answers_and_the_context_goes_on_from_what_came() -> None:
    turns = (Turn(0, "", -1, 100, 50, 8), Turn(0, "grep", -1, 10, 2000, 0))
    policy = default_policy()
    lanes = tuple(lane._replace(output_tokens=64) for lane in policy.lanes)
    load = workload(session("a", (0, 1, 1))._replace(turns=turns))
    out = simulate(site(1, policy=policy._replace(lanes=lanes)), load, seed=1)
    assert [(r.status, r.out_tokens) for r in out.turns] == [("length", 8), ("length", 64)]
    assert out.turns[1].prompt_tokens == 118


def test_a_turn_before_a_tool_ends_in_a_call_of_it() -> None:
    out = simulate(site(1), workload(session("a", (0, 10, 3), (5, 10, 3), tool="grep")), seed=1)
    assert [row.status for row in out.turns] == ["tool_calls", "stop"]


def test_spawned_sessions_begin_after_their_turn_and_joins_hold_the_parent() -> None:
    load = workload(
        session("root", (0, 100, 5), (50, 100, 5), (50, 10, 5)),
        session("waits", (0, 100, 200), start_ns=20 * MS, spawn=Spawn(0, 0, joins=True)),
        session("free", (0, 100, 900), start_ns=30 * MS, spawn=Spawn(0, 0, joins=False)),
        session("grandchild", (0, 10, 5), spawn=Spawn(1, 0, joins=True)),
    )
    out = simulate(site(1), load, seed=1)
    root = of(out, 0)
    joined, free, grandchild = (of(out, n)[0] for n in (1, 2, 3))
    assert joined.arrival_ns == root[0].end_ns + 20 * MS
    assert free.arrival_ns == root[0].end_ns + 30 * MS
    assert root[1].arrival_ns == joined.end_ns + 50 * MS
    assert root[2].arrival_ns == root[1].end_ns + 50 * MS
    assert free.end_ns > root[2].end_ns
    assert grandchild.arrival_ns == joined.end_ns


def test_what_a_failed_turn_would_have_spawned_is_never_asked() -> None:
    load = workload(
        session("root", (0, 100, 5), (0, 20_000, 5), (0, 5, 5)),
        session("early", (0, 10, 5), spawn=Spawn(0, 0, joins=True)),
        session("never", (0, 10, 5), spawn=Spawn(0, 2, joins=True)),
    )
    out = simulate(site(1), load, seed=1)
    assert [(s.failed, s.turns_done, s.start_ns >= 0) for s in out.sessions] == [
        (True, 1, True),
        (False, 1, True),
        (False, 0, False),
    ]
    assert [row.status for row in of(out, 0)] == ["stop", "refused"]
    assert out.sessions[0].end_ns == -1


def test_a_long_chain_that_is_never_asked_ends_with_its_root() -> None:
    links = (
        session(f"s{at}", (0, 10, 5), spawn=Spawn(at - 1, 0, joins=False)) for at in range(1, 3_000)
    )
    out = simulate(site(1), workload(session("s0", (0, 20_000, 5)), *links), seed=1)
    assert [s.failed for s in out.sessions] == [True] + [False] * 2_999
    assert all(s.start_ns < 0 for s in out.sessions[1:])


def test_a_full_lane_makes_clients_wait_and_come_back() -> None:
    policy = default_policy()
    lane = policy.lanes[INTERACTIVE]._replace(queue_max=1, wait_max_ns=8 * SECOND_NS)
    policy = policy._replace(lanes=(lane, *policy.lanes[1:]))
    many = workload(*(session(f"s{i}", (0, 100, 100), lane=INTERACTIVE) for i in range(6)))
    out = simulate(site(1, running_max=1, policy=policy), many, seed=1)
    assert Counter(row.status for row in out.turns) == {"stop": 6}
    assert out.counters["client_retries"] > 0
    late = max(out.turns, key=lambda row: row.end_ns)
    assert late.arrival_ns == 0, "a turn arrives when it is asked first"


@pytest.mark.parametrize("pool", [POOL, PoolSpec(3 * 10**6, 1e9, 0.0), None])
@pytest.mark.parametrize("kv", ["full", "hints", "none"])
@pytest.mark.parametrize("stalls", [False, True])
def test_tokens_are_conserved(pool: PoolSpec | None, kv: str, stalls: bool) -> None:
    load = agents(12)
    where = site(
        2,
        kv=kv,
        slots=4,
        running_max=4,
        kv_tokens=6_000,
        store=MoveCost(1e6, 0.5, stalls),
        load=MoveCost(1e6, 0.5, stalls),
    )
    out = simulate(replace(where, pool=pool) if pool else where, load, seed=1)
    turns = [turn for s in load.sessions for turn in s.turns]
    assert len(out.turns) == len(turns)
    assert {row.status for row in out.turns} == {"stop"}
    assert sum(row.out_tokens for row in out.turns) == sum(turn.out_tokens for turn in turns)
    assert sum(c.out_tokens for c in out.cards) == out.counters["out_tokens"]
    computed = sum(row.prompt_tokens - row.cached_tokens for row in out.turns)
    assert sum(c.prompt_tokens for c in out.cards) == computed
    assert sum(row.prompt_tokens for row in out.turns) == out.counters["prompt_tokens"]
    assert sum(row.cached_tokens for row in out.turns) == out.counters["cached_tokens"]
    assert sum(c.stores for c in out.cards) == out.counters.get("stores", 0)
    assert sum(c.loads for c in out.cards) == out.counters.get("loads", 0)
    assert any(c.stall_ns for c in out.cards) == bool(stalls and kv == "full" and pool)
    if kv == "none":
        assert out.counters["cached_tokens"] == 0
    if kv == "full" and pool == POOL:
        assert out.counters["loads_verified"] > 0


def test_an_engine_with_its_own_cache_forgets_what_ran_longest_ago() -> None:
    load = agents(8, turns=4, every_ms=10, gap_ms=2000)
    roomy = simulate(site(1, kv="hints", kv_tokens=65_536), load, seed=1)
    tight = simulate(site(1, kv="hints", kv_tokens=2_500), load, seed=1)
    assert roomy.counters["cached_tokens"] > tight.counters["cached_tokens"]
    later = [row for row in roomy.turns if row.turn]
    assert all(row.cached_tokens > 0 for row in later)


def test_stores_that_stall_slow_the_neighbours() -> None:
    load = workload(session("long", (0, 100, 400)), session("short", (0, 4_000, 2), (300, 10, 2)))
    beside = simulate(site(1, pool=POOL, store=MoveCost(80e6, 0.0, stalls=False)), load, seed=1)
    stalling = simulate(site(1, pool=POOL, store=MoveCost(80e6, 0.0, stalls=True)), load, seed=1)
    delay_ns = of(stalling, 0)[0].end_ns - of(beside, 0)[0].end_ns
    assert delay_ns == pytest.approx(2 * 80 * MS, abs=25 * MS)
    assert stalling.cards[0].stall_ns == pytest.approx(3 * 80 * MS, abs=5 * MS)


def test_moves_of_many_cards_share_the_pool() -> None:
    load = agents(16, turns=3, every_ms=0, gap_ms=1)
    slow = PoolSpec(size_bytes=10**9, bytes_per_s=2e6, base_ns=0.0)
    fast = simulate(site(8, pool=POOL), load, seed=1)
    shared = simulate(site(8, pool=slow), load, seed=1)
    assert shared.duration_ns > fast.duration_ns
    moved = sum(c.moved_bytes for c in shared.cards)
    assert moved / 2e6 * SECOND_NS <= shared.duration_ns


def test_sessions_that_nobody_closes_idle_out() -> None:
    load = workload(session("a", (0, 10, 5)), session("b", (0, 10, 5), start_ns=3600 * SECOND_NS))
    out = simulate(site(1), load, seed=1, close_sessions=False)
    assert out.counters["sessions_expired"] == 1
    closed = simulate(site(1), load, seed=1)
    assert closed.counters["sessions_closed"] == 2


def test_a_session_that_idled_out_goes_on_without_its_context() -> None:
    hour_ms = 3600 * 1000
    out = simulate(site(1), workload(session("a", (0, 100, 5), (hour_ms, 10, 5))), seed=1)
    assert out.counters["sessions_expired"] == 1
    assert (out.turns[1].prompt_tokens, out.turns[1].cached_tokens) == (115, 0)


def test_samples_are_spread_evenly_whatever_the_run_lasts() -> None:
    few = simulate(site(1), agents(4), seed=1, samples=40)
    many = simulate(site(1), agents(4), seed=1, samples=1000)
    none = simulate(site(1), agents(4), seed=1, samples=0)
    assert few.digest == many.digest == none.digest
    assert none.samples == []
    assert 40 <= len(few.samples) <= 82
    gaps = {b.time_ns - a.time_ns for a, b in zip(few.samples[:-2], few.samples[1:-1], strict=True)}
    assert len(gaps) == 1
    assert max(sample.running for sample in few.samples) > 1
    assert few.samples[-1].sessions == 0
    assert few.samples[-1].time_ns == few.duration_ns


def test_progress_counts_up_to_all_sessions() -> None:
    heard: list[float] = []
    simulate(site(1), agents(6), seed=1, samples=50, progress=heard.append)
    assert heard == sorted(heard)
    assert heard[-1] == 1


def test_time_to_first_token_of_a_mixed_batch_grows_with_its_neighbours() -> None:
    one = simulate(site(1), workload(session("s", (0, 500, 20))), seed=1)
    crowd = workload(*(session(f"s{i}", (0, 500, 20)) for i in range(8)))
    eight = simulate(site(1), crowd, seed=1)
    assert max(row.first_ns for row in eight.turns) > 5 * one.turns[0].first_ns


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"batching": Batching(token_budget=4)}, "token_budget"),
        ({"batching": Batching(token_budget=64, order="length")}, "order"),
        ({"step": LinearCost(0, 0, 0, 0, 0, 0)}, "nanosecond"),
        ({"step": LinearCost(9, 9, 9, 9, -1, 0)}, "negative"),
    ],
)
def test_a_profile_that_cannot_run_is_refused(changes: dict[str, Any], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        simulate(site(1, **changes), agents(1), seed=1)


def test_a_site_that_cannot_run_is_refused() -> None:
    whole = site(2)
    twice = replace(whole, cards=(whole.cards[0], whole.cards[0]))
    other = replace(whole.cards[1], profile=card_profile(model="n"))
    for wrong, word in (
        (replace(whole, cards=()), "no cards"),
        (twice, "two cards named c0"),
        (replace(whole, cards=(whole.cards[0], other)), "one model"),
        (replace(whole, pool=PoolSpec(1, 0.0, 0.0)), "bandwidth"),
    ):
        assert isinstance(wrong, Site)
        with pytest.raises(ConfigError, match=word):
            simulate(wrong, agents(1), seed=1)


def test_a_workload_that_cannot_be_asked_is_refused() -> None:
    empty = session("a", (0, 1, 1))._replace(turns=())
    for wrong, word in (
        ((empty,), "no turns"),
        ((session("a", (0, 1, 1)), session("a", (0, 1, 1))), "two sessions"),
        ((session("a", (0, 1, 1), spawn=Spawn(0, 0, joins=False)),), "before its parent"),
    ):
        with pytest.raises(ConfigError, match=word):
            simulate(site(1), Workload("w", "", wrong), seed=1)
