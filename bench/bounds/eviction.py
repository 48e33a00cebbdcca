"""The cheapest set of idle contexts to drop so that enough room is free: a covering knapsack."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Chosen(NamedTuple):
    """Indices of what goes, ascending, and what that costs."""

    victims: tuple[int, ...]
    cost: int


def cheapest(sizes: Sequence[int], costs: Sequence[int], need: int) -> Chosen | None:
    """Return the cheapest choice whose sizes sum up to `need` or more; None if all is too little.

    Args:
        sizes: Blocks that each one would free, above 0.
        costs: What dropping it costs, not below 0.
        need: Blocks that are missing.

    Cost: O(n × need). Ties go to the choice found first.
    """
    assert len(sizes) == len(costs)
    if need <= 0:
        return Chosen((), 0)
    if sum(sizes) < need:
        return None
    best: list[tuple[int, tuple[int, ...]] | None] = [None] * (need + 1)
    best[0] = (0, ())
    for index, (size, cost) in enumerate(zip(sizes, costs, strict=True)):
        for covered in range(need - 1, -1, -1):
            before = best[covered]
            if before is None:
                continue
            after = min(need, covered + size)
            known = best[after]
            if known is None or before[0] + cost < known[0]:
                best[after] = (before[0] + cost, (*before[1], index))
    found = best[need]
    assert found is not None
    return Chosen(found[1], found[0])
