"""What each choice of retention wins in the twin: the core's rules, with one taken back at a time.

Four cards of a supernode, agents with short and long tools, a link to the pool from fast to very
slow, a pool that is small, or none. `first` has all five choices as they were at first. `free` is
the shipped core where a load takes no time, which bounds what a load ahead of its turn could win.

Run: `python -m bench.retention.ablation` (prints a line a run; no clock is read, so the figures are
the same everywhere). Some 20 minutes for all.
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from bedplate.core.base import SHIPPED
from bedplate.core.lease import expired
from bedplate.core.limits import BATCH, INTERACTIVE, SHARED, default_policy
from bedplate.core.rules import Rank, Rules
from bedplate.core.state import State
from bedplate.core.states import Branch, Slot
from bedplate.core.units import MILLISECOND_NS, SECOND_NS
from bedplate.perf.profile import MoveCost
from bedplate.twin.run import NO_POOL, CardSpec, PoolSpec, Site, simulate
from bedplate.twin.workload.form import Session, Turn, Workload
from bench.baselines.form import load_all, oldest_copy
from bench.twin.sites import PROFILE

TOOLS = (("grep", 2.0, 0.6), ("test", 10.0, 1.0), ("user", 90.0, 1.2))
"""Name, median seconds and sigma of the logarithm."""
LONG, SHORT = (0.4, 0.3, 0.3), (0.7, 0.3, 0.0)
"""Shares of the tools."""
SESSIONS = 300
TTFT_NS = 2 * SECOND_NS
GB = 10**9


class Case(NamedTuple):
    """One site and load. `pool_gb` 0 is no pool; `gb_per_s` is what all its moves share."""

    kv_tokens: int
    pool_gb: int
    gb_per_s: float
    starts_per_s: float
    mix: tuple[float, float, float]


CASES = {
    "fast link": Case(150_000, 400, 100, 0.45, LONG),
    "fair link": Case(150_000, 400, 10, 0.45, LONG),
    "slow link": Case(150_000, 400, 4, 0.45, LONG),
    "very slow link": Case(150_000, 400, 1, 0.45, LONG),
    "small pool": Case(150_000, 40, 20, 0.45, LONG),
    "no pool": Case(300_000, 0, 1, 0.35, LONG),
    "no pool, short tools": Case(150_000, 0, 1, 0.35, SHORT),
    "slow link, short tools": Case(150_000, 400, 4, 0.7, SHORT),
}


def first_worth(state: State, slot: Slot) -> Rank:
    """Rank idle slots as at first: lease, clean, lane, least recent use."""
    branch = slot.branch
    assert branch is not None
    leased = not expired(branch.session, state.now_ns)
    lane = BATCH - branch.session.lane
    return (int(leased), int(slot.dirty), lane, slot.used_ns, slot.id)


def first_lease(state: State, branch: Branch) -> int:
    """Protect KV for the lane's time, whatever tool runs."""
    return state.policy.lanes[branch.session.lane].lease_ns


def first_stores(state: State, slot: Slot) -> bool:
    """Copy every turn to the pool."""
    return True


WITHOUT: dict[str, Rules] = {
    "worth": SHIPPED._replace(worth=first_worth),
    "entry_worth": SHIPPED._replace(entry_worth=oldest_copy),
    "lease": SHIPPED._replace(lease=first_lease),
    "loads": SHIPPED._replace(loads=load_all),
    "stores": SHIPPED._replace(stores=first_stores),
}
FIRST = SHIPPED._replace(
    worth=first_worth,
    entry_worth=oldest_copy,
    lease=first_lease,
    loads=load_all,
    stores=first_stores,
)


def agents(case: Case, seed: int) -> Workload:
    """Return sessions of 8 to 22 turns that begin as a Poisson process."""
    rng = random.Random(seed)
    at_s = 0.0
    found = []
    for number in range(SESSIONS):
        at_s += rng.expovariate(case.starts_per_s)
        lane = INTERACTIVE if number % 3 else SHARED
        turns = tuple(_turn(rng, case, turn == 0) for turn in range(rng.randint(8, 22)))
        start_ns = round(at_s * SECOND_NS)
        key, tenant = f"s{number}", f"tenant-{number % 8}"
        found.append(Session(key, tenant, lane, "agent", start_ns, None, turns))
    return Workload("agents", f"{SESSIONS} sessions, seed {seed}", tuple(found))


def _turn(rng: random.Random, case: Case, first: bool) -> Turn:
    name, median_s, sigma = rng.choices(TOOLS, case.mix)[0]
    gap_ns = round(rng.lognormvariate(0, sigma) * median_s * SECOND_NS)
    new_tokens = rng.randint(4_000, 12_000) if first else rng.randint(200, 1_500)
    out_tokens = rng.randint(30, 250)
    return Turn(0 if first else gap_ns, "" if first else name, -1, new_tokens, out_tokens)


def site(case: Case, *, free: bool = False) -> Site:
    """Return four cards; with `free` a load takes no time."""
    load = MoveCost(base_ns=0.0 if free else 5e4, byte_ns=0.0 if free else 0.05, stalls=False)
    profile = replace(PROFILE, kv_tokens=case.kv_tokens, slots=64, running_max=16, load=load)
    cards = tuple(CardSpec(f"card-{number}", "node", profile) for number in range(4))
    size = case.pool_gb * GB
    speed = 1e15 if free else case.gb_per_s * GB
    pool = PoolSpec(size, speed, 0.0 if free else 1_000.0) if size else NO_POOL
    return Site("ablation", cards, default_policy(pool_bytes_max=size), pool)


def play(case: Case, rules: Rules, seeds: Sequence[int], *, free: bool = False) -> dict[str, float]:
    """Return the means over seeds of what a run shows."""
    rows = []
    for seed in seeds:
        out = simulate(site(case, free=free), agents(case, seed), seed=seed, rules=rules)
        ran = [turn for turn in out.turns if turn.first_ns >= 0]
        ttft_ns = sorted(turn.first_ns - turn.arrival_ns for turn in ran)
        sessions = [row.end_ns - row.start_ns for row in out.sessions if row.end_ns >= 0]
        computed = sum(turn.prompt_tokens - turn.cached_tokens for turn in ran)
        rows.append(
            {
                "TTFT within 2 s, %": 100 * sum(t <= TTFT_NS for t in ttft_ns) / len(out.turns),
                "mean TTFT, ms": statistics.fmean(ttft_ns) / MILLISECOND_NS,
                "P99 TTFT, ms": ttft_ns[len(ttft_ns) * 99 // 100] / MILLISECOND_NS,
                "session, s": statistics.fmean(sessions) / SECOND_NS,
                "computed, M tokens": computed / 1e6,
                "loads": out.counters.get("loads", 0),
                "evictions": out.counters.get("evictions", 0),
            }
        )
    return {name: statistics.fmean(row[name] for row in rows) for name in rows[0]}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", help=f"of {', '.join(CASES)}; all if none is named")
    parser.add_argument("--seeds", type=int, default=3)
    asked = parser.parse_args()
    for name in asked.cases or CASES:
        case, seeds = CASES[name], range(1, asked.seeds + 1)
        runs = {"shipped": (SHIPPED, False), "first": (FIRST, False)}
        runs.update({f"without {choice}": (rules, False) for choice, rules in WITHOUT.items()})
        if case.pool_gb:
            runs["free loads"] = (SHIPPED, True)
        for label, (rules, free) in runs.items():
            found = play(case, rules, seeds, free=free)
            text = ", ".join(f"{key} {value:.4g}" for key, value in found.items())
            print(f"{name}: {label}: {text}", flush=True)


if __name__ == "__main__":
    main()
