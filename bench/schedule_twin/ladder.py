"""Part `ladder`: from cards fixed to tenants to one scheduled box, one step at a time.

    fixed     each tenant its own cards and its own part of the pool; KV freed with each turn
    pooled    all cards for all, KV kept and offloaded, least recently used goes
    KV tuned  the same with KV of 8 bits, and prompts computed in chunks that fit a step
    dynamic   the same cards under the core

The load is the built-in box's: six personas, each a tenant. P99 is that of turns from arrival to
end at half of what the tuned box could carry. Throughput is what a backlog comes to: turns a second
until nine in ten have ended, all sessions begun within a minute.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from bedplate.core.units import SECOND_NS
from bedplate.twin.goodput import ENDED_WELL
from bedplate.twin.outcome import Outcome
from bedplate.twin.run import Site
from bedplate.twin.workload.form import Workload
from bedplate.twin.workload.generate import Mix, generate
from bedplate.twin.workload.transform import clamp_gaps, clamp_tokens, restart, take
from bench.baselines.catalogue import BASELINES
from bench.harness.claims import Measured, Spec
from bench.harness.run import BenchError, Part, Run
from bench.schedule_twin import play
from bench.schedule_twin.cells import spread_out
from bench.schedule_twin.costs import costs
from bench.schedule_twin.loads import GAP_MAX_S, rate_for
from bench.schedule_twin.sites import BOX, site

SHARES = {
    "wealth_adviser": 3.0,
    "investment_research": 1.0,
    "fraud_triage": 4.0,
    "compliance_review": 2.0,
    "customer_service": 8.0,
    "insurance_claim": 2.0,
}
SHARE = 0.5
BACKLOG_S = 60.0
ENDED = 0.9
UNTUNED_TOKENS = 8_192
"""Tokens of a step as the engine comes."""
KV_8_BITS = 'cards[0].kv_precision="int8"'
FIXED, POOLED, TUNED, DYNAMIC = "fixed", "pooled", "KV tuned", "dynamic"
STEPS = (FIXED, POOLED, TUNED, DYNAMIC)


class Rung(NamedTuple):
    """One step: P99 of turns in seconds, turns a second."""

    p99_s: float
    turns_per_s: float


def measure(run: Run) -> Mapping[str, Measured]:
    """Climb."""
    roots = 150 if run.quick else 900
    tasks = [(name, roots, run.seeds[0]) for name in STEPS]
    found = dict(zip(STEPS, spread_out(climb, tasks), strict=True))
    for name, rung in found.items():
        text = f"turn P99 {rung.p99_s:,.1f} s, {rung.turns_per_s:.2f} turns/s"
        run.figure(f"ladder, {name}", text)
        run.say(f"ladder, {name}: {text}")
    run.rounds["ladder"] = {name: dict(rung._asdict()) for name, rung in found.items()}
    first, last = found[FIXED], found[DYNAMIC]
    if not np.isfinite(first.p99_s):
        raise BenchError("ladder: over 1 % of the turns on fixed partitions found no answer")
    return {
        "ladder_p99": Measured(last.p99_s / first.p99_s, 1, "fixed partitions"),
        "ladder_throughput": Measured(last.turns_per_s / first.turns_per_s, 1, "fixed partitions"),
    }


def climb(task: tuple[str, int, int]) -> Rung:
    """Run one step's two loads: its name, sessions, seed."""
    name, roots, seed = task
    tuned = site(BOX, changes=[KV_8_BITS])
    at = tuned if name in (TUNED, DYNAMIC) else site(BOX, token_budget=UNTUNED_TOKENS)
    workload = sessions(tuned, roots, seed)
    rate = rate_for(workload, costs(workload, tuned.cards[0].profile), tuned, SHARE)
    steady = restart(workload, rate, seed=seed)
    backlog = restart(workload, len(workload.sessions) / BACKLOG_S, seed=seed)
    return Rung(
        _p99_s(_run(name, at, steady, seed)), _throughput(_run(name, at, backlog, seed), backlog)
    )


def sessions(at: Site, roots: int, seed: int) -> Workload:
    """Return sessions of the built-in box's mix, as its cards can serve them."""
    mix = Mix(SHARES, sessions_per_hour=float(2 * roots), flat=True)
    profile = at.cards[0].profile
    return clamp_gaps(
        clamp_tokens(take(generate(mix, seed=seed), roots), profile.context_tokens), GAP_MAX_S
    )


def _run(name: str, at: Site, workload: Workload, seed: int) -> Outcome:
    policies = {each.name: each for each in BASELINES}
    if name == FIXED:
        return play.partitioned(at, workload, policies["release"], seed=seed)
    if name == DYNAMIC:
        return play.shipped(at, workload, seed=seed)
    return play.baseline(at, workload, policies["lru"], seed=seed)


def _p99_s(outcome: Outcome) -> float:
    waits = [
        (row.end_ns - row.arrival_ns) / SECOND_NS if row.status in ENDED_WELL else np.inf
        for row in outcome.turns
    ]
    return float(np.quantile(waits, 0.99, method="higher"))


def _throughput(outcome: Outcome, workload: Workload) -> float:
    """Return turns a second until nine in ten of all have ended.

    Raises:
        BenchError: they never did.
    """
    ends = sorted(row.end_ns for row in outcome.turns if row.status in ENDED_WELL)
    wanted = round(ENDED * sum(len(session.turns) for session in workload.sessions))
    if len(ends) < wanted:
        raise BenchError(f"ladder: {len(ends):,} turns ended of {wanted:,}: {outcome.failures}")
    return wanted * SECOND_NS / ends[wanted - 1]


PART = Part(
    "ladder",
    (
        Spec("ladder_p99", "ratio", "<= 0.5", "P99 of turns at the top of the ladder, over below"),
        Spec("ladder_throughput", "ratio", ">= 2.5", "turns/s at the top, over below"),
    ),
    measure,
)
