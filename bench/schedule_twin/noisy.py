"""Part `noisy`: one tenant asks ten times its share; what the others notice of it.

Four tenants share a box evenly. Three of them ask 0.8 of their share. Alone, these three have the
cards of their shares, three quarters of the box; in company they have all of it, together with a
fourth tenant that asks ten times its own share. All are in one lane.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from bedplate.core.limits import SHARED
from bedplate.core.units import SECOND_NS
from bedplate.twin.goodput import ENDED_WELL
from bedplate.twin.outcome import Outcome
from bedplate.twin.run import Site
from bedplate.twin.workload.form import Workload
from bedplate.twin.workload.transform import Place, assign, restart
from bench.baselines.catalogue import BASELINES
from bench.harness.claims import Measured, Spec
from bench.harness.run import Json, Part, Run
from bench.schedule_twin import play
from bench.schedule_twin.cells import spread_out
from bench.schedule_twin.costs import costs
from bench.schedule_twin.loads import Size, merged, rate_for, sessions_of
from bench.schedule_twin.sites import BOX, site

SHARE = 0.8
TENANTS = 4
TIMES = 10.0
NOISY = "noisy"
TRACES = ("azure-llm-2023", "mooncake-fast25")
ALONE = "alone"
POLICIES = ("bedplate", "vtc", "lru")
FULL = {"azure-llm-2023": 6_000, "mooncake-fast25": 1_200}
QUICK = {"azure-llm-2023": 1_200, "mooncake-fast25": 240}
"""Sessions of the three quiet tenants together."""


def measure(run: Run) -> Mapping[str, Measured]:
    """Run both loads alone and in company."""
    sizes = QUICK if run.quick else FULL
    tasks = [
        (trace, sizes[trace], policy, run.seeds[0])
        for trace in TRACES
        for policy in (ALONE, *POLICIES)
    ]
    found: dict[str, dict[str, float]] = {}
    for task, p99_s in zip(tasks, spread_out(others_p99, tasks), strict=True):
        found.setdefault(task[0], {})[task[2]] = p99_s
    ratios: list[float] = []
    for trace, rows in found.items():
        ratios.append(rows[POLICIES[0]] / rows[ALONE])
        text = ", ".join(f"{name} {p99_s:.2f} s" for name, p99_s in rows.items())
        run.figure(f"TTFT P99 of quiet tenants, {trace}", text)
        run.say(f"noisy, {trace}: {text}")
    run.rounds["noisy"] = {trace: dict[str, Json](rows) for trace, rows in found.items()}
    text = ", ".join(
        f"{policy} {max(rows[policy] / rows[ALONE] for rows in found.values()):.1f}"
        for policy in POLICIES[1:]
    )
    return {"noisy_p99": Measured(max(ratios), len(ratios), f"alone = 1; {text}")}


def others_p99(task: tuple[str, int, str, int]) -> float:
    """Return seconds: the 99th percentile of the quiet tenants' time to the first token."""
    trace, roots, policy, seed = task
    at = site(BOX)
    quiet, noise = tenants_of(trace, at, roots, seed)
    if policy == ALONE:
        fewer = at.cards[: len(at.cards) * (TENANTS - 1) // TENANTS]
        outcome = play.shipped(replace(at, cards=fewer), quiet, seed=seed)
        return _p99_s(outcome, quiet)
    both = merged(quiet, noise, NOISY)
    if policy == POLICIES[0]:
        return _p99_s(play.shipped(at, both, seed=seed), both)
    chosen = next(each for each in BASELINES if each.name == policy)
    return _p99_s(play.baseline(at, both, chosen, seed=seed), both)


def tenants_of(trace: str, at: Site, roots: int, seed: int) -> tuple[Workload, Workload]:
    """Return the quiet tenants' sessions, and the noisy one's over the same time."""
    asked = sessions_of(trace, at, Size(roots), seed=seed)
    share = SHARE * (TENANTS - 1) / TENANTS
    rate = rate_for(asked, costs(asked, at.cards[0].profile), at, share)
    quiet = restart(asked, rate, seed=seed)
    places = [Place(f"quiet-{number}", SHARED) for number in range(TENANTS - 1)]
    quiet = assign(quiet, places)
    loud_rate = rate / (TENANTS - 1) * TIMES
    loud_roots = round(roots * loud_rate / rate)
    loud = sessions_of(trace, at, Size(loud_roots), seed=seed + 1)
    return quiet, assign(restart(loud, loud_rate, seed=seed + 1), [Place(NOISY, SHARED)])


def _p99_s(outcome: Outcome, workload: Workload) -> float:
    """Return the 99th percentile over all turns that quiet tenants asked; no answer is infinite."""
    waits = [
        (row.first_ns - row.arrival_ns) / SECOND_NS if row.status in ENDED_WELL else np.inf
        for row in outcome.turns
        if workload.sessions[row.session].tenant != NOISY
    ]
    return float(np.quantile(waits, 0.99, method="higher"))


PART = Part(
    "noisy",
    (
        Spec(
            "noisy_p99",
            "ratio",
            "<= 1.3",
            "TTFT P99 beside a tenant at ten times its share, over alone with one's own share",
        ),
    ),
    measure,
)
