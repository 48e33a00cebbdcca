"""Four real traces, scaled to a share of what a site can carry at most.

Load is work ÷ capacity: the least card time (`bench.bounds.steps`) or the least KV area that the
trace's sessions cost, whichever binds, against the cards' time and KV while sessions begin. No
engine could carry load 1, so 0.8 of it is high.
"""

from __future__ import annotations

from typing import NamedTuple

from bedplate.core.limits import BATCH, INTERACTIVE, SHARED
from bedplate.core.units import SECOND_NS
from bedplate.twin.run import Site
from bedplate.twin.workload.form import Workload
from bedplate.twin.workload.read import read_workload
from bedplate.twin.workload.transform import (
    Place,
    assign,
    clamp_gaps,
    clamp_tokens,
    repeat,
    restart,
)
from bench.schedule_twin.costs import Costs, costs
from bench.twin.speed import trace

TRACES = ("mooncake-fast25", "claude-code-traces", "lmcache-agent-trace", "azure-llm-2023")
GAP_MAX_S = 120.0
"""Longest gap: who is away for longer adds to session times and not to the load."""
TENANTS = 5
LANES = (INTERACTIVE, SHARED, SHARED, BATCH)
"""Lanes of sessions in turn: a quarter, a half, a quarter."""


class Load(NamedTuple):
    """A workload on a site, with what it costs at least. `sessions_per_s` begin."""

    workload: Workload
    costs: Costs
    sessions_per_s: float


def capacity(workload: Workload, cost: Costs, site: Site) -> float:
    """Return how many root sessions a second the site could carry at most."""
    roots = sum(session.spawn is None for session in workload.sessions)
    kv_tokens = sum(card.profile.kv_tokens for card in site.cards)
    work_s = float(cost.work_ns.sum()) / len(site.cards) / SECOND_NS
    area_s = float(cost.area.sum()) / kv_tokens / SECOND_NS
    return roots / max(work_s, area_s)


def load(name: str, site: Site, *, share: float, roots: int, seed: int) -> Load:
    """Return a trace at a share of the site's capacity, in lanes and tenants.

    Sessions are drawn from the trace's own until there are `roots`, and begin as a Poisson process.
    """
    profile = site.cards[0].profile
    workload = clamp_tokens(read_workload(trace(name, "dev"), seed=seed), profile.context_tokens)
    workload = clamp_gaps(repeat(workload, roots, seed=seed), GAP_MAX_S)
    workload = _cut_answers(workload, min(lane.output_tokens for lane in site.policy.lanes))
    cost = costs(workload, profile)
    rate = share * capacity(workload, cost, site)
    workload = assign(restart(workload, rate, seed=seed), places())
    return Load(workload, cost, rate)


def _cut_answers(workload: Workload, most: int) -> Workload:
    """End answers where the lanes' limit ends them: these clients state none of their own."""
    sessions = tuple(
        session._replace(
            turns=tuple(
                turn._replace(out_tokens=min(turn.out_tokens, most)) for turn in session.turns
            )
        )
        for session in workload.sessions
    )
    return workload._replace(
        sessions=sessions, source=f"{workload.source}; answers cut to {most} tokens"
    )


def places() -> list[Place]:
    """Return tenants and lanes in turn, so that each tenant has sessions in each lane."""
    count = TENANTS * len(LANES)
    return [Place(f"tenant-{at % TENANTS}", LANES[at % len(LANES)]) for at in range(count)]
