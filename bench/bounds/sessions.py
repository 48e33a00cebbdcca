"""Session times and makespans that no schedule is below.

Each session needs its own time on an empty site (`alone`), and all of them share what there is of
card time and of KV. A shared resource of capacity `c` is relaxed to one machine of that speed which
serves one session at a time and may switch at any instant: on it, shortest remaining work first
(SRPT) has the least sum of completion times of all schedules, so its sum bounds that of any real
site, whose cards can do no better than the one machine.

    mean session time >= max(mean alone, SRPT on card time, SRPT on KV area)
    makespan          >= max(last arrival + alone, first arrival + work ÷ capacity over any suffix)
"""

from __future__ import annotations

import heapq

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def srpt_mean(arrival: Floats, work: Floats, capacity: float) -> float:
    """Return the least mean time from arrival to completion on one machine of a speed.

    Args:
        arrival: When each session arrives.
        work: What it needs of the resource, not below 0, in capacity × time.
        capacity: Of the resource, above 0.

    Cost: O(n log n).
    """
    count = len(arrival)
    if count == 0:
        return 0.0
    order = np.argsort(arrival, kind="stable")
    begins = arrival[order]
    needs = work[order] / capacity
    waiting: list[tuple[float, int]] = []
    total, now, following = 0.0, float(begins[0]), 0
    while following < count or waiting:
        if not waiting:
            now = max(now, float(begins[following]))
        while following < count and begins[following] <= now:
            heapq.heappush(waiting, (float(needs[following]), following))
            following += 1
        left, which = heapq.heappop(waiting)
        until = float(begins[following]) if following < count else np.inf
        if now + left <= until:
            now += left
            total += now - float(begins[which])
        else:
            heapq.heappush(waiting, (left - (until - now), which))
            now = until
    return total / count


def mean_bound(arrival: Floats, alone: Floats, resources: list[tuple[Floats, float]]) -> float:
    """Return a mean session time that no schedule is below.

    `resources` has (what each session needs, capacity) of everything that sessions share.
    """
    shared = [srpt_mean(arrival, work, capacity) for work, capacity in resources]
    return max([float(alone.mean()), *shared])


def makespan_bound(arrival: Floats, alone: Floats, resources: list[tuple[Floats, float]]) -> float:
    """Return an end of the last session that no schedule is before, on the clock of `arrival`.

    For each resource and each arrival, what arrives then or later cannot begin before.
    """
    order = np.argsort(arrival, kind="stable")
    begins = arrival[order]
    bound = float((arrival + alone).max())
    for work, capacity in resources:
        later = np.cumsum(work[order][::-1])[::-1] / capacity
        bound = max(bound, float((begins + later).max()))
    return bound
