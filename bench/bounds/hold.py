"""One tool gap: hold the KV and pay rent, or drop it and pay once.

Who knows that the tool takes `gap` pays min(rent × gap, value); who holds for `ttl` and then drops
pays rent × min(gap, ttl), and the value too where the gap was longer. With ttl = value ÷ rent that
is at most twice as much, whatever the gap; without any knowledge no fixed time does better.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def clairvoyant(gap: Floats, rent: Floats, value: Floats) -> Floats:
    """Return the least cost of each gap. `rent` is cost a unit of time, above 0."""
    return np.minimum(rent * gap, value)


def held(gap: Floats, rent: Floats, value: Floats, ttl: Floats) -> Floats:
    """Return the cost of holding each gap for `ttl`; a gap that ends at `ttl` is a hit."""
    return rent * np.minimum(gap, ttl) + np.where(gap > ttl, value, 0.0)


def break_even(rent: Floats, value: Floats) -> Floats:
    """Return the time after which rent has cost as much as dropping would."""
    return value / rent
