"""How many values spread: the same few figures wherever the twin reports times."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Spread(NamedTuple):
    """`n` values, at least one. A quantile lies between its two neighbours, by its distance."""

    n: int
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    most: float


def spread(values: Iterable[float], *, unit: float = 1.0) -> Spread | None:
    """Summarise values in any order, divided by `unit`; None where there are none.

    Cost: O(n log n).
    """
    ordered = sorted(values)
    if not ordered:
        return None
    marks = [quantile(ordered, share) / unit for share in (0.5, 0.9, 0.95, 0.99, 1.0)]
    return Spread(len(ordered), sum(ordered) / len(ordered) / unit, *marks)


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return the value below which `share` (0 to 1) of the values lie, by linear interpolation.

    Args:
        ordered: At least one value, in rising order.
        share: 0 is the least value, 1 the largest.
    """
    at = share * (len(ordered) - 1)
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)
