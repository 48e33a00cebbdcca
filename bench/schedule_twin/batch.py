"""Part `batch`: batch work that takes what interactive work leaves, gathered and not, and apart.

A box serves interactive sessions at 0.4 of what it can carry, and has a backlog of batch work that
does not run out. Together, both have all cards and the lanes keep order; gathered, the same with
batch turns held back until many can start (`gathering`); apart, batch work has a quarter of the
cards and interactive work the others. Batch throughput is output tokens of its turns that ended
while interactive sessions came. What batch work costs the interactive is told against the same
interactive load alone on all cards.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from bedplate.core.base import SHIPPED
from bedplate.core.limits import BATCH, INTERACTIVE
from bedplate.core.units import SECOND_NS
from bedplate.twin.goodput import ENDED_WELL
from bedplate.twin.outcome import Outcome
from bedplate.twin.run import simulate
from bedplate.twin.workload.form import Workload
from bedplate.twin.workload.transform import Place, assign, restart
from bench.harness.claims import Measured, Spec
from bench.harness.run import Part, Run
from bench.schedule_twin import play
from bench.schedule_twin.cells import spread_out
from bench.schedule_twin.costs import costs
from bench.schedule_twin.gathering import gathered
from bench.schedule_twin.loads import TENANTS, Size, merged, rate_for, sessions_of
from bench.schedule_twin.sites import BOX, site

TRACE = "azure-llm-2023"
SHARE = 0.4
OWN_CARDS = 4
"""Apart, one of so many cards is for batch work."""
GATHER_COUNT, GATHER_NS = 32, 10 * SECOND_NS
ALONE, APART, TOGETHER, GATHERED = "interactive alone", "apart", "together", "gathered"
CASES = (ALONE, APART, TOGETHER, GATHERED)


class Told(NamedTuple):
    """TTFT P99 of interactive turns, and output tokens a second of batch turns."""

    p99_s: float
    batch_per_s: float


def measure(run: Run) -> Mapping[str, Measured]:
    """Run the load in each case."""
    roots = 1_000 if run.quick else 5_000
    tasks = [(name, roots, run.seeds[0]) for name in CASES]
    found = dict(zip(CASES, spread_out(told, tasks), strict=True))
    for name, each in found.items():
        text = f"TTFT P99 {each.p99_s:.2f} s, batch {each.batch_per_s:,.0f} tokens/s"
        run.figure(f"interactive and batch, {name}", text)
        run.say(f"batch, {name}: {text}")
    run.rounds["batch"] = {name: dict(each._asdict()) for name, each in found.items()}
    together = found[TOGETHER]
    gain = found[GATHERED].batch_per_s / together.batch_per_s
    over_own = together.batch_per_s / found[APART].batch_per_s
    change = together.p99_s / found[ALONE].p99_s
    return {
        "gathering_gain": Measured(gain, 1, "the same lanes and cards, as batch turns come"),
        "batch_over_own_cards": Measured(over_own, 1, "a quarter of the cards for batch work"),
        "interactive_p99_change": Measured(change, 1, "no batch work on the same cards"),
    }


def told(task: tuple[str, int, int]) -> Told:
    """Run one case: its name, interactive sessions, seed."""
    name, roots, seed = task
    at = site(BOX)
    asked = sessions_of(TRACE, at, Size(roots), seed=seed)
    rate = rate_for(asked, costs(asked, at.cards[0].profile), at, SHARE)
    tenants = range(TENANTS)
    urgent = assign(
        restart(asked, rate, seed=seed), [Place(f"tenant-{each}", INTERACTIVE) for each in tenants]
    )
    until_ns = max(session.start_ns for session in urgent.sessions)
    backlog = TENANTS * at.policy.lanes[BATCH].queue_max
    patient = assign(
        sessions_of(TRACE, at, Size(backlog), seed=seed + 1),
        [Place(f"tenant-{each}", BATCH) for each in tenants],
    )
    if name in (TOGETHER, GATHERED):
        both = merged(urgent, patient, "batch")
        plan = gathered(GATHER_COUNT, GATHER_NS) if name == GATHERED else SHIPPED.plan
        rules = SHIPPED._replace(plan=plan)
        outcome = simulate(at, both, seed=seed, samples=0, rules=rules)
        return Told(_p99_s(outcome, both), _rate(outcome, both, until_ns))
    if name == ALONE:
        return Told(_p99_s(play.shipped(at, urgent, seed=seed), urgent), 0.0)
    own = replace(at, cards=at.cards[::OWN_CARDS])
    rest = replace(at, cards=tuple(card for card in at.cards if card not in own.cards))
    slow = play.shipped(own, patient, seed=seed)
    fast = play.shipped(rest, urgent, seed=seed)
    return Told(_p99_s(fast, urgent), _rate(slow, patient, until_ns))


def _p99_s(outcome: Outcome, workload: Workload) -> float:
    waits = [
        (row.first_ns - row.arrival_ns) / SECOND_NS if row.status in ENDED_WELL else np.inf
        for row in outcome.turns
        if workload.sessions[row.session].lane == INTERACTIVE
    ]
    return float(np.quantile(waits, 0.99, method="higher"))


def _rate(outcome: Outcome, workload: Workload, until_ns: int) -> float:
    tokens = sum(
        row.out_tokens
        for row in outcome.turns
        if workload.sessions[row.session].lane == BATCH
        and row.status in ENDED_WELL
        and row.end_ns <= until_ns
    )
    return tokens * SECOND_NS / until_ns


PART = Part(
    "batch",
    (
        Spec(
            "gathering_gain",
            "ratio",
            ">= 1.3",
            "batch tokens/s with batch turns gathered, over as they come",
        ),
        Spec(
            "batch_over_own_cards",
            "ratio",
            ">= 1.3",
            "batch tokens/s on shared cards, over a quarter of them for itself",
        ),
        Spec(
            "interactive_p99_change",
            "ratio",
            "<= 1.05",
            "TTFT P99 of interactive turns beside batch work, over alone on the same cards",
        ),
    ),
    measure,
)
