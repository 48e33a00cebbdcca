"""Session times and makespans that no schedule is below.

Each session needs its own time on an empty site (`alone`), and all of them share what there is of
card time and of KV. A shared resource of capacity `c` is relaxed to one machine of that speed which
serves one session at a time and may switch at any instant: on it, shortest remaining work first
(SRPT) has the least sum of completion times of all schedules, so its sum bounds that of any real
site, whose cards can do no better than the one machine.

    mean session time >= max(mean alone, SRPT on card time, SRPT on KV area)
    makespan          >= max(last arrival + alone, first arrival + work ÷ capacity over any suffix)
    k-th session time >= the least x in which k sessions can end, each x after its arrival

The k sessions may be any: the others wait for them. So a bound of the 95th percentile is no bound
that the same schedule could reach for the median.
"""

from __future__ import annotations

import heapq
from itertools import accumulate

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


def quantile_bound(
    arrival: Floats, alone: Floats, work: Floats, capacity: float, share: float
) -> float:
    """Return a session time that `share` of the sessions are not below in any schedule.

    Between two sessions it is interpolated, as `bench.harness.stats.quantile` does.

    Args:
        arrival: When each session arrives; there is at least one.
        alone: What it takes on an empty site.
        work: What it needs of the resource, in capacity × time.
        capacity: Of the resource, above 0.
        share: 0 to 1.

    Cost: O(n²) for each of some 20 times that are tried.
    """
    order = np.argsort(arrival, kind="stable")
    sessions = [(float(arrival[at]), float(alone[at]), float(work[at]) / capacity) for at in order]
    at = share * (len(sessions) - 1)
    low = int(at)
    high = min(low + 1, len(sessions) - 1)
    first = _least_time(sessions, low + 1)
    return first + (_least_time(sessions, high + 1) - first) * (at - low)


def _least_time(sessions: list[tuple[float, float, float]], count: int) -> float:
    """Return the least time in which so many sessions can end, to a thousandth of itself."""
    low, high = 0.0, max(own for _, own, _ in sessions) + sum(need for _, _, need in sessions)
    while high - low > high / 1_000:
        middle = (low + high) / 2
        if _in_time(sessions, middle) >= count:
            high = middle
        else:
            low = middle
    return low


def _in_time(sessions: list[tuple[float, float, float]], within: float) -> int:
    """Return how many sessions can end within a time of their arrivals.

    They are due in the order of their arrivals, so the one machine serves those that it takes in
    that order; once one would be late, the one goes whose work frees the most (Kise, Ibaraki and
    Mine, 1978).
    """
    taken: list[tuple[float, float]] = []
    for begin, own, need in sessions:
        if own > within:
            continue
        taken.append((begin, need))
        ends = _ends(taken)
        if max(ends) > begin + within:
            del taken[_freest(taken, ends)]
    return len(taken)


def _ends(taken: list[tuple[float, float]]) -> list[float]:
    """Return when all of it ends if it were served without a pause from each begin on."""
    ends, after = [], 0.0
    for begin, need in reversed(taken):
        after += need
        ends.append(begin + after)
    return ends[::-1]


def _freest(taken: list[tuple[float, float]], ends: list[float]) -> int:
    """Return whose going leaves the earliest end of what remains."""
    behind = [float("-inf"), *accumulate(reversed(ends[1:]), max)]
    before, best, which = float("-inf"), float("inf"), 0
    for at, (_, need) in enumerate(taken):
        left = max(before - need, behind[len(ends) - 1 - at])
        if left < best:
            best, which = left, at
        before = max(before, ends[at])
    return which


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
