"""Bounds against brute force on instances so small that every choice can be tried."""

from __future__ import annotations

import math
from functools import cache
from itertools import combinations, permutations, product
from random import Random

import numpy as np
import pytest

from bench.bounds import goodput, hold, retention, sessions
from bench.bounds.eviction import cheapest
from bench.bounds.retention import Gaps
from bench.bounds.steps import Engine, packings, prices

SEEDS = range(12)


# Retention.


def _gaps(random: Random, count: int) -> Gaps:
    begin = [random.randrange(8) for _ in range(count)]
    end = [at + random.randint(1, 5) for at in begin]
    size = [random.randint(1, 9) for _ in range(count)]
    cost = [random.randint(1, 20) for _ in range(count)]
    return Gaps(*(np.array(each, dtype=float) for each in (begin, end, size, cost)))


@pytest.mark.parametrize("seed", SEEDS)
def test_retention_is_the_best_of_all_choices(seed: int) -> None:
    random = Random(seed)
    gaps = _gaps(random, 8)
    times = np.arange(14, dtype=float)
    room = np.array([random.randint(0, 15) for _ in times], dtype=float)
    best = math.inf
    for kept in product((0, 1), repeat=8):
        held = [
            sum(k * s for k, b, e, s in zip(kept, *gaps[:3], strict=True) if b <= t < e)
            for t in times
        ]
        if all(h <= r for h, r in zip(held, room, strict=True)):
            missed = sum((1 - k) * c for k, c in zip(kept, gaps.cost, strict=True))
            best = min(best, missed)
    found = retention.optimum(gaps, times, room, integral=True)
    assert found.missed == pytest.approx(best)
    assert found.bound == pytest.approx(best, rel=1e-4)
    shares = retention.optimum(gaps, times, room, integral=False)
    assert shares.missed <= best + 1e-6


def test_retention_keeps_everything_where_there_is_room() -> None:
    gaps = _gaps(Random(1), 6)
    found = retention.optimum(gaps, np.arange(14.0), np.full(14, 100.0), integral=True)
    assert found.missed == pytest.approx(0)
    assert found.kept == pytest.approx(np.ones(6))


def test_retention_of_nothing_costs_nothing() -> None:
    none = Gaps(*(np.zeros(0) for _ in range(4)))
    assert retention.optimum(none, np.zeros(0), np.zeros(0), integral=True).missed == 0


# One eviction.


@pytest.mark.parametrize("seed", SEEDS)
def test_eviction_is_the_cheapest_of_all_choices(seed: int) -> None:
    random = Random(seed)
    sizes = [random.randint(1, 9) for _ in range(7)]
    costs = [random.randint(0, 30) for _ in range(7)]
    need = random.randint(1, sum(sizes))
    every = [
        chosen
        for count in range(8)
        for chosen in combinations(range(7), count)
        if sum(sizes[i] for i in chosen) >= need
    ]
    found = cheapest(sizes, costs, need)
    assert found is not None
    assert found.cost == min(sum(costs[i] for i in chosen) for chosen in every)
    assert sum(sizes[i] for i in found.victims) >= need
    assert found.cost == sum(costs[i] for i in found.victims)


def test_eviction_that_is_not_needed_or_not_enough() -> None:
    found = cheapest([3, 4], [1, 1], 0)
    assert found is not None
    assert found.victims == ()
    assert cheapest([3, 4], [1, 1], 8) is None


def test_shortest_first_is_not_the_optimum_of_a_step() -> None:
    """The known counterexample: contexts 4, 5 and 6 with quadratic costs, 6 needed."""
    found = cheapest([4, 5, 6], [16, 25, 36], 6)
    assert found is not None
    assert (found.victims, found.cost) == ((2,), 36)


# One hold.


@pytest.mark.parametrize("seed", SEEDS)
def test_break_even_pays_at_most_twice_what_who_knows_pays(seed: int) -> None:
    random = np.random.default_rng(seed)
    gap = random.exponential(10.0, 200)
    rent, value = random.uniform(0.1, 3, 200), random.uniform(1, 40, 200)
    known = hold.clairvoyant(gap, rent, value)
    tries = np.linspace(0, 200, 4001)
    each = np.array([hold.held(gap, rent, value, np.full(200, ttl)) for ttl in tries])
    assert (each.min(axis=0) >= known - 1e-9).all()
    own = hold.held(gap, rent, value, hold.break_even(rent, value))
    assert (own <= 2 * known + 1e-9).all()


def test_no_fixed_time_is_better_than_twice() -> None:
    """Gaps a little longer than the hold, whatever the hold: the worst case of each time."""
    rent, value = np.array([1.0]), np.array([10.0])
    for ttl in np.linspace(0.1, 40, 80):
        gap = np.array([ttl + 1e-6])
        ratio = hold.held(gap, rent, value, np.array([ttl])) / hold.clairvoyant(gap, rent, value)
        assert ratio[0] >= 2 - 1e-4


# Session times.


def _best_on_one_machine(arrival: tuple[int, ...], work: tuple[int, ...]) -> float:
    """Try every assignment of unit slots: the least sum of completion times with preemption."""

    @cache
    def least(now: int, left: tuple[int, ...]) -> int:
        if not any(left):
            return 0
        ready = [i for i, rest in enumerate(left) if rest and arrival[i] <= now]
        if not ready:
            return least(now + 1, left)
        found = []
        for i in ready:
            rest = (*left[:i], left[i] - 1, *left[i + 1 :])
            ends = now + 1 - arrival[i] if rest[i] == 0 else 0
            found.append(ends + least(now + 1, rest))
        return min(found)

    return least(0, work)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("share", [0.0, 0.5, 0.7, 1.0])
def test_a_session_time_is_the_least_in_which_so_many_can_end(seed: int, share: float) -> None:
    """Any sessions may be those that end in time; in the order of arrivals, if in any."""
    random = Random(seed)
    count = 6
    arrival = sorted(random.randrange(10) for _ in range(count))
    work = [random.randint(1, 6) for _ in range(count)]
    alone = [need / 2 + random.choice((0, 0, 4)) for need in work]

    def least(number: int) -> float:
        best = math.inf
        for chosen in combinations(range(count), number):
            now, longest = 0.0, 0.0
            for at in chosen:
                now = max(now, arrival[at]) + work[at] / 2
                longest = max(longest, now - arrival[at], alone[at])
            best = min(best, longest)
        return best

    at = share * (count - 1)
    low, high = least(math.floor(at) + 1), least(math.ceil(at) + 1)
    found = sessions.quantile_bound(
        np.array(arrival, float), np.array(alone, float), np.array(work, float), 2.0, share
    )
    assert found == pytest.approx(low + (high - low) * (at - math.floor(at)), rel=2e-3)
    assert found <= low + (high - low) * (at - math.floor(at)) + 1e-9


@pytest.mark.parametrize("seed", SEEDS)
def test_srpt_is_the_best_preemptive_schedule_of_one_machine(seed: int) -> None:
    random = Random(seed)
    arrival = tuple(random.randrange(6) for _ in range(4))
    work = tuple(random.randint(1, 4) for _ in range(4))
    found = sessions.srpt_mean(np.array(arrival, float), np.array(work, float), 1.0)
    assert found * 4 == pytest.approx(_best_on_one_machine(arrival, work))


@pytest.mark.parametrize("seed", SEEDS)
def test_no_list_schedule_of_two_machines_beats_the_bounds(seed: int) -> None:
    random = Random(seed)
    arrival = [random.randrange(5) for _ in range(5)]
    work = [random.randint(1, 6) for _ in range(5)]
    mean = makespan = math.inf
    for order in permutations(range(5)):
        free, ends = [0, 0], {}
        for i in order:
            machine = free.index(min(free))
            free[machine] = ends[i] = max(free[machine], arrival[i]) + work[i]
        mean = min(mean, sum(ends[i] - arrival[i] for i in order) / 5)
        makespan = min(makespan, max(ends.values()))
    begin, need = np.array(arrival, float), np.array(work, float)
    assert sessions.mean_bound(begin, need, [(need, 2.0)]) <= mean + 1e-9
    assert sessions.makespan_bound(begin, need, [(need, 2.0)]) <= makespan + 1e-9


def test_session_bounds_take_the_term_that_binds() -> None:
    begin, alone = np.zeros(4), np.full(4, 3.0)
    work = np.full(4, 1.0)
    assert sessions.mean_bound(begin, alone, [(work, 1.0)]) == 3.0
    assert sessions.mean_bound(begin, np.full(4, 1.0), [(work, 1.0)]) == pytest.approx(2.5)
    area = np.full(4, 40.0)
    assert sessions.mean_bound(begin, alone, [(work, 1.0), (area, 10.0)]) == pytest.approx(10.0)
    assert sessions.makespan_bound(begin, alone, [(work, 1.0), (area, 10.0)]) == 16.0
    assert sessions.makespan_bound(np.array([0.0, 9.0]), np.ones(2), [(np.ones(2), 1.0)]) == 10.0


# Goodput.


def _feasible(jobs: list[tuple[int, int, int]]) -> bool:
    """Tell whether earliest deadline first, with preemption, ends all in time on one machine."""
    left = [work for _, _, work in jobs]
    for now in range(40):
        ready = [i for i, (release, _, _) in enumerate(jobs) if release <= now and left[i]]
        if ready:
            which = min(ready, key=lambda i: jobs[i][1])
            if now + 1 > jobs[which][1]:
                return False
            left[which] -= 1
    return not any(left)


@pytest.mark.parametrize("seed", SEEDS)
def test_no_choice_of_turns_beats_the_goodput_bound(seed: int) -> None:
    random = Random(seed)
    jobs = []
    for _ in range(8):
        release, work = random.randrange(8), random.randint(1, 4)
        jobs.append((release, release + work + random.randrange(4), work))
    value = [random.randint(1, 5) for _ in jobs]
    best = 0
    for chosen in product((0, 1), repeat=8):
        if _feasible([job for job, taken in zip(jobs, chosen, strict=True) if taken]):
            best = max(best, sum(v for v, taken in zip(value, chosen, strict=True) if taken))
    columns = np.array(jobs, dtype=float).T
    turns = goodput.Turns(columns[0], columns[1], np.array(value, float), (columns[2],))
    loose = goodput.bound(turns, (1.0,), grain=1.0)
    tight = goodput.bound(turns, (1.0,), grain=1.0, integral=True)
    assert best - 1e-6 <= tight <= loose + 1e-6
    assert loose <= sum(value)


def test_goodput_bound_binds_where_all_are_due_at_once() -> None:
    count = 10
    turns = goodput.Turns(
        np.zeros(count), np.full(count, 4.0), np.ones(count), (np.ones(count), np.full(count, 8.0))
    )
    assert goodput.bound(turns, (1.0, 100.0), grain=4.0) == pytest.approx(4.0)
    assert goodput.bound(turns, (100.0, 10.0), grain=4.0) == pytest.approx(5.0)


def test_goodput_bound_leaves_out_what_cannot_be_good_and_lets_be_what_may_wait() -> None:
    turns = goodput.Turns(
        np.zeros(3), np.array([4.0, np.inf, 4.0]), np.array([1.0, 1.0, 0.0]), (np.full(3, 9.0),)
    )
    assert goodput.bound(turns, (1.0,), grain=1.0) == pytest.approx(1 + 4 / 9)
    nothing = goodput.Turns(np.zeros(2), np.ones(2), np.zeros(2), (np.ones(2),))
    assert goodput.bound(nothing, (1.0,), grain=1.0) == 0


# Steps.


def _fixed(prompt: int, sequences: int) -> float:
    return 5.0 + max(20.0, 0.3 * prompt + 0.2 * sequences + 0.001 * prompt * (prompt > 100))


@pytest.mark.parametrize("seed", SEEDS)
def test_no_batching_is_cheaper_than_its_prices(seed: int) -> None:
    random = Random(seed)
    engine = Engine(_fixed, 256, 48, 0.25)
    found = prices(
        engine,
        prompt=random.uniform(0, 1e5),
        tokens=random.uniform(0, 1e4),
        full=random.uniform(0, 5e3),
    )
    assert min(found) >= 0
    for _ in range(400):
        sequences = random.randint(0, 48)
        prompt = random.randint(0 if sequences else 1, 256 - sequences)
        full = min(1.0, sum(random.uniform(0, 0.25) for _ in range(sequences)))
        price = found.prompt_ns * prompt + found.token_ns * sequences + found.full_ns * full
        assert price <= _fixed(prompt, sequences) + 1e-6


def test_prices_come_to_what_the_best_batching_takes() -> None:
    """Only decoding, contexts tiny: full batches of 32 in 10 ns each, up to the grid's width."""
    engine = Engine(lambda p, b: 10.0, 64, 32, 1e-6)
    found = prices(engine, prompt=0.0, tokens=3_200.0, full=0.0)
    assert found.token_ns * 3_200 == pytest.approx(1_000.0)
    nothing = prices(engine, prompt=0.0, tokens=0.0, full=0.0)
    assert nothing == (0.0, 0.0, 0.0)


def test_prices_of_long_contexts_are_those_of_reading_the_weights_for_few() -> None:
    """Two contexts fill a card, so a step advances two however many it could."""
    engine = Engine(lambda p, b: 10.0, 64, 32, 0.5)
    found = prices(engine, prompt=0.0, tokens=100.0, full=50.0)
    assert found.token_ns * 100 + found.full_ns * 50 == pytest.approx(500.0)


@pytest.mark.parametrize("seed", SEEDS)
def test_packings_give_no_card_more_than_one(seed: int) -> None:
    random = np.random.default_rng(seed)
    for _ in range(200):
        parts = random.dirichlet(np.ones(random.integers(1, 8)) * random.choice([0.3, 1, 5]))
        shares = parts * random.choice([1.0, 0.97, 0.6])
        for packing in packings():
            assert packing(shares).sum() <= 1 + 1e-9


def test_packings_see_that_two_large_contexts_need_two_cards() -> None:
    shares = np.array([0.6, 0.6, 0.55])
    assert max(packing(shares).sum() for packing in packings()) == pytest.approx(3)
    assert shares.sum() < 2
