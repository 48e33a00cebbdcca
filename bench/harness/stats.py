"""The few statistics that reports need."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import NamedTuple


class Spread(NamedTuple):
    """Repeats of one measurement."""

    median: float
    least: float
    most: float
    n: int

    def text(self, digits: int = 1) -> str:
        """Return `median (least to most)`."""
        return f"{self.median:,.{digits}f} ({self.least:,.{digits}f} to {self.most:,.{digits}f})"


def spread(values: Sequence[float]) -> Spread:
    """Summarise repeats; there is at least one."""
    return Spread(statistics.median(values), min(values), max(values), len(values))


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value below which `share` of the values lie, by linear interpolation.

    Args:
        values: At least one, in any order.
        share: 0 to 1.
    """
    ordered = sorted(values)
    at = share * (len(ordered) - 1)
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)
