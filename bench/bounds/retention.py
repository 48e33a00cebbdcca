"""The least that must be computed again: which tool gaps to hold KV through, everything known.

A *gap* begins when a turn ends and ends when the session's next turn starts; through it the KV of
the session, `size` tokens, either stays or is dropped, and then `cost` is paid. At each of the
`times` at most `room` tokens may be held. With turn times fixed this is a temporal knapsack:

    max Σ cost x     with  Σ over gaps open at t of size x <= room(t)  for every t,   0 <= x <= 1

Whole contexts ask for x in {0, 1} (`integral`); where single blocks can be dropped and cost is
linear, x may be any share, and the relaxation is exact. A gap is open at t if begin <= t < end.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

Floats = NDArray[np.float64]


class Gaps(NamedTuple):
    """One entry a gap: when it is open, what holding it takes, what dropping it costs."""

    begin: Floats
    end: Floats
    size: Floats
    cost: Floats


class Kept(NamedTuple):
    """An optimum. `kept` is the share held of each gap, `missed` the cost of what was not.

    `bound` is a cost that no choice is below; equal to `missed` unless the time ran out.
    """

    kept: Floats
    missed: float
    bound: float


def optimum(
    gaps: Gaps,
    times: Floats,
    room: Floats,
    *,
    integral: bool,
    seconds: float = 60.0,
    gap: float = 1e-6,
) -> Kept:
    """Return which gaps to hold.

    Args:
        gaps: All of them.
        times: Instants at which room may bind.
        room: Tokens that may be held then, not below 0.
        integral: Contexts are kept whole or not at all.
        seconds: Longest time for the search.
        gap: Share of the value by which the choice may miss the best; `bound` shows what is open.

    Raises:
        RuntimeError: the solver found nothing in time.
    """
    count = len(gaps.size)
    total = float(gaps.cost.sum())
    if count == 0:
        return Kept(np.zeros(0), 0.0, 0.0)
    rows = _rows(gaps, times)
    limits = LinearConstraint(rows, -np.inf, room)
    found = milp(
        -gaps.cost,
        constraints=limits,
        bounds=Bounds(0, 1),
        integrality=np.full(count, int(integral)),
        options={"time_limit": seconds, "mip_rel_gap": gap},
    )
    if found.x is None:
        raise RuntimeError(f"no retention optimum in {seconds:g} s: {found.message}")
    value = -float(found.fun)
    dual = found.mip_dual_bound if integral else None
    best = value if dual is None else max(value, -float(dual))
    return Kept(np.asarray(found.x), total - value, total - best)


def _rows(gaps: Gaps, times: Floats) -> csr_array:
    """Return one row for each instant: the sizes of the gaps that are open then."""
    order = np.argsort(times, kind="stable")
    sorted_times = times[order]
    first = np.searchsorted(sorted_times, gaps.begin, side="left")
    last = np.searchsorted(sorted_times, gaps.end, side="left")
    row = np.concatenate([order[a:b] for a, b in zip(first, last, strict=True)])
    column = np.repeat(np.arange(len(gaps.size)), np.maximum(last - first, 0))
    return csr_array((gaps.size[column], (row, column)), shape=(len(times), len(gaps.size)))
