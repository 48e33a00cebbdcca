"""The most turns that can end inside their limits: windows of time can only hold so much work.

A turn that counts does all of its work between its release and its deadline. So for every window,
the work of the chosen turns that are released and due inside it is at most what all cards do in it,
and the same holds for the area of KV that they occupy:

    max Σ value y    with  Σ over turns inside [r, d] of work y <= capacity × (d − r),   0 <= y <= 1

The relaxation over a family of windows is a bound for every schedule. Windows here are those of all
lengths 2^k × `grain`, shifted by half their length: few enough to solve, dense enough that any
interval is inside one of at most four times its length.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array, vstack

Floats = NDArray[np.float64]


class Turns(NamedTuple):
    """One entry a turn. `value` is 0 for one that could not be good on an empty site.

    `deadline` is infinite where a turn may begin as late as it likes. `needs` has, for each shared
    resource, what the turn takes of it.
    """

    release: Floats
    deadline: Floats
    value: Floats
    needs: tuple[Floats, ...]


def bound(
    turns: Turns, capacities: tuple[float, ...], *, grain: float, integral: bool = False
) -> float:
    """Return a sum of values that no schedule is above.

    Args:
        turns: All that were offered.
        capacities: Of each resource: a rate, so that capacity × time is comparable to `needs`.
        grain: Length of the shortest windows, on the clock of releases.
        integral: Turns count whole or not at all: tighter, and only for small numbers.

    Raises:
        RuntimeError: the solver gave up.
    """
    counted = turns.value > 0
    if not counted.any():
        return 0.0
    release, deadline = turns.release[counted], turns.deadline[counted]
    value = turns.value[counted]
    blocks, limits = [], []
    for begin, end in _windows(release, deadline, grain):
        inside = np.flatnonzero((release >= begin) & (deadline <= end))
        for needs, capacity in zip(turns.needs, capacities, strict=True):
            taken = needs[counted][inside]
            most = capacity * (end - begin)
            if taken.sum() > most:  # other windows never bind
                row = np.zeros(len(inside), dtype=np.int64)
                blocks.append(csr_array((taken, (row, inside)), shape=(1, len(value))))
                limits.append(most)
    if not blocks:
        return float(value.sum())
    found = milp(
        -value,
        constraints=LinearConstraint(vstack(blocks), -np.inf, np.array(limits)),
        bounds=Bounds(0, 1),
        integrality=np.full(len(value), int(integral)),
    )
    if found.x is None:
        raise RuntimeError(f"no goodput bound: {found.message}")
    dual = found.mip_dual_bound if integral else found.fun
    return -float(found.fun if dual is None else dual)


def _windows(release: Floats, deadline: Floats, grain: float) -> list[tuple[float, float]]:
    """Return windows that hold at least one whole turn."""
    finite = np.isfinite(deadline)
    if not finite.any():
        return []
    begin, end = float(release[finite].min()), float(deadline[finite].max())
    found: list[tuple[float, float]] = []
    length = grain
    while True:
        found += [
            (float(at), float(at) + length) for at in np.arange(begin - length / 2, end, length / 2)
        ]
        if length >= 2 * (end - begin):
            return found
        length *= 2
