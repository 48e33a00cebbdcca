"""Four real traces, scaled to a share of what a site can carry at most.

Load is work ÷ capacity: the least card time (`bench.bounds.steps`) or the least KV area of the
turns, whichever binds, that an undelayed schedule asks for, over the shortest time in which half of
all of it falls, against the cards' time and KV. No engine could carry load 1, so 0.8 is high.
"""

from __future__ import annotations

from random import Random
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bedplate.core.limits import BATCH, INTERACTIVE, SHARED
from bedplate.core.units import SECOND_NS
from bedplate.twin.run import Site
from bedplate.twin.workload.form import Workload
from bedplate.twin.workload.read import read_workload
from bedplate.twin.workload.source import Family, assemble, families_of
from bedplate.twin.workload.transform import (
    Place,
    assign,
    clamp_gaps,
    clamp_tokens,
    repeat,
    restart,
)
from bench.schedule_twin.costs import Costs, costs
from bench.schedule_twin.limits import earliest
from bench.twin.speed import trace

TRACES = ("mooncake-fast25", "claude-code-traces", "lmcache-agent-trace", "azure-llm-2023")
GAP_MAX_S = 120.0
"""Longest gap: who is away for longer adds to session times and not to the load."""
TENANTS = 4
LANES = (INTERACTIVE, SHARED, SHARED, BATCH)
"""Lanes of sessions in turn: a quarter, a half, a quarter."""

Floats = NDArray[np.float64]


class Load(NamedTuple):
    """A workload on a site, with what it costs at least. `sessions_per_s` begin."""

    workload: Workload
    costs: Costs
    sessions_per_s: float


class Size(NamedTuple):
    """How much of a trace: `roots` root sessions, each session's first `turns_max` turns.

    A site of many cards needs many sessions at a time; where those of a trace are long, a part of
    each keeps the run short and the site as busy.
    """

    roots: int
    turns_max: int = 1_000_000


def load(name: str, site: Site, size: Size, *, share: float, seed: int) -> Load:
    """Return a trace at a share of the site's capacity, in lanes and tenants.

    Sessions are drawn from the trace's own until there are enough, and begin as a Poisson process.
    """
    workload = sessions_of(name, site, size, seed=seed)
    cost = costs(workload, site.cards[0].profile)
    rate = rate_for(workload, cost, site, share)
    workload = assign(restart(workload, rate, seed=seed), places())
    return Load(workload, cost, rate)


def sessions_of(name: str, site: Site, size: Size, *, seed: int) -> Workload:
    """Return sessions of a trace as the site can serve them, all beginning at 0."""
    context = site.cards[0].profile.context_tokens
    workload = clamp_tokens(read_workload(trace(name, "dev"), seed=seed), context)
    workload = first_turns(repeat(workload, size.roots, seed=seed), size.turns_max)
    workload = clamp_gaps(workload, GAP_MAX_S)
    return _cut_answers(workload, min(lane.output_tokens for lane in site.policy.lanes))


def rate_for(workload: Workload, cost: Costs, site: Site, share: float) -> float:
    """Return how many root sessions a second make a load of `share`; all begin at 0 so far."""
    after, _, _ = earliest(workload, cost)
    at = 0.0
    random = Random(0)
    starts: list[float] = []
    owners: list[int] = []
    roots: list[int] = []
    for session in workload.sessions:
        if session.spawn is None:
            roots.append(len(starts))
            at += random.expovariate(1.0)
            starts.append(at)
        else:
            roots.append(roots[session.spawn.session])
        owners += [roots[-1]] * len(session.turns)
    begins = np.array(starts)[np.array(owners)] * SECOND_NS
    kv_tokens = float(sum(card.profile.kv_tokens for card in site.cards))
    resources = ((cost.work_ns, float(len(site.cards))), (cost.area, kv_tokens))

    def asked(rate: float) -> float:
        release = begins / rate + after
        return max(density(release, work) / capacity for work, capacity in resources)

    low, high = 1e-6, 1e6
    for _ in range(50):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if asked(middle) < share else (low, middle)
    return high


def density(at: Floats, amount: Floats) -> float:
    """Return half of the sum of amounts, divided by the shortest time in which it falls."""
    order = np.argsort(at, kind="stable")
    times, sums = at[order], np.concatenate([[0.0], np.cumsum(amount[order])])
    half = sums[-1] / 2
    last = np.searchsorted(sums, sums[:-1] + half, side="left") - 1
    inside = last < len(times)
    shortest = float((times[last[inside]] - times[inside]).min())
    return float(half) / max(shortest, 1.0)


def merged(one: Workload, other: Workload, name: str) -> Workload:
    """Return both as one workload; keys of the other's sessions get a name before them."""
    renamed = [session._replace(key=f"{name}/{session.key}") for session in other.sessions]
    families = [*families_of(one.sessions), *families_of(renamed)]
    return assemble(one.name, f"{one.source}; and {name}: {other.source}", families)


def first_turns(workload: Workload, most: int) -> Workload:
    """Keep the first turns of each session, and what these spawn."""
    families = []
    for family in families_of(workload.sessions):
        kept: dict[int, int] = {}
        cut: Family = []
        for index, session in enumerate(family):
            spawn = session.spawn
            if spawn is not None:
                if spawn.turn >= most or spawn.session not in kept:
                    continue
                session = session._replace(spawn=spawn._replace(session=kept[spawn.session]))
            kept[index] = len(cut)
            cut.append(session._replace(turns=session.turns[:most]))
        families.append(cut)
    return assemble(workload.name, workload.source, families)


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
    return [Place(f"tenant-{tenant}", lane) for tenant in range(TENANTS) for lane in LANES]
