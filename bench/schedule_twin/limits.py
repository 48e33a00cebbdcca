"""The bounds of one load on one site, from its costs: good turns, session time, makespan.

Releases are the earliest that any schedule could come to: start of the session, turns before it on
an empty site, gaps between. A turn that is not the first of its session has no deadline in absolute
time, since a late turn moves all that follow; it can only be impossible altogether.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bedplate.core.limits import BATCH
from bedplate.core.units import SECOND_NS
from bedplate.twin.goodput import slo_class
from bedplate.twin.run import Site
from bedplate.twin.workload.form import Workload
from bench.bounds import goodput, sessions
from bench.schedule_twin.costs import Costs

GRAIN_S = 2.0

Floats = NDArray[np.float64]


class Limits(NamedTuple):
    """What no schedule beats: good turns at most; mean session seconds and makespan at least."""

    good: float
    session_s: float
    makespan_s: float


def limits(workload: Workload, cost: Costs, site: Site, *, slo_factor: float = 1.0) -> Limits:
    """Return the bounds of a load on a site."""
    cards = float(len(site.cards))
    kv_tokens = float(sum(card.profile.kv_tokens for card in site.cards))
    release, start, alone = earliest(workload, cost)
    value, deadline = _chances(workload, cost, release, alone, slo_factor)
    good = goodput.bound(
        goodput.Turns(release, deadline, value, (cost.work_ns, cost.area)),
        (cards, kv_tokens),
        grain=GRAIN_S * SECOND_NS,
    )
    count = len(workload.sessions)
    work: Floats = np.bincount(cost.session, cost.work_ns, count).astype(np.float64)
    area: Floats = np.bincount(cost.session, cost.area, count).astype(np.float64)
    root = np.array([session.spawn is None for session in workload.sessions])
    shared = [(work[root], cards), (area[root], kv_tokens)]
    mean_root = sessions.mean_bound(start[root], alone[root], shared)
    mean = (mean_root * float(root.sum()) + float(alone[~root].sum())) / count
    everything = [(work, cards), (area, kv_tokens)]
    end = sessions.makespan_bound(start, alone, everything)
    return Limits(good, mean / SECOND_NS, end / SECOND_NS)


def earliest(workload: Workload, cost: Costs) -> tuple[Floats, Floats, Floats]:
    """Return the earliest arrival of each turn, and of each session with its least time."""
    release = np.empty(len(cost.alone_ns))
    start = np.empty(len(workload.sessions))
    alone = np.empty(len(workload.sessions))
    ends: list[list[float]] = []
    at = 0
    for index, session in enumerate(workload.sessions):
        begin = float(session.start_ns)
        if session.spawn is not None:
            begin += ends[session.spawn.session][session.spawn.turn]
        start[index] = now = begin
        own = []
        for number, turn in enumerate(session.turns):
            now += turn.gap_ns if number else 0
            release[at] = now
            now += cost.alone_ns[at]
            own.append(now)
            at += 1
        ends.append(own)
        alone[index] = now - begin
    return release, start, alone


def _chances(
    workload: Workload, cost: Costs, release: Floats, alone: Floats, slo_factor: float
) -> tuple[Floats, Floats]:
    """Return 1 for each turn that could be good and 0 for others, and its deadline if it has one.

    The deadline of a good turn is its first token's and its pace's together.
    """
    value = np.zeros(len(release))
    deadline = np.full(len(release), np.inf)
    at = 0
    for index, session in enumerate(workload.sessions):
        slo = slo_class(session.lane, slo_factor)
        for number, turn in enumerate(session.turns):
            more = max(1, turn.out_tokens) - 1
            pace = (cost.alone_ns[at] - cost.first_ns[at]) / more if more else 0.0
            possible = (
                (not slo.ttft_ns or cost.first_ns[at] <= slo.ttft_ns)
                and (not slo.tpot_ns or pace <= slo.tpot_ns)
                and (not slo.session_ns or alone[index] <= slo.session_ns)
            )
            value[at] = float(possible)
            if session.spawn is None and session.lane == BATCH:
                deadline[at] = session.start_ns + slo.session_ns
            elif session.spawn is None and number == 0:
                deadline[at] = release[at] + slo.ttft_ns + more * slo.tpot_ns
            at += 1
    return value, deadline
