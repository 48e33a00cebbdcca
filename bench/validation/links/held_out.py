"""Errors of the link constants on rows that the fit has not seen, in three ways of leaving out."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import NamedTuple

from bedplate.perf.links_data import FITTED, LinkRow, rows
from bench.validation.links.fit import errors, fit, points

KINDS = ("switch", "host tree", "between servers")
"""What joins the ranks of a row: a link that each card has for itself, or one that they share."""


def kind_of(row: LinkRow) -> str:
    """Return which of `KINDS` a row is."""
    if row.nodes > 1:
        return "between servers"
    return "host tree" if "PCIe" in row.link else "switch"


class Errors(NamedTuple):
    """Errors of points (a row at a size) with the kind of each, over how many rows and fits."""

    values: list[float]
    kinds: list[str]
    rows: int
    fits: int

    @property
    def median(self) -> float:
        """Median error."""
        return statistics.median(self.values)

    def of(self, kind: str) -> float:
        """Return the median error of one kind."""
        mine = [e for e, k in zip(self.values, self.kinds, strict=True) if k == kind]
        return statistics.median(mine)

    @property
    def p90(self) -> float:
        """The error that one point in ten exceeds."""
        return statistics.quantiles(self.values, n=10)[-1]


LEFT_OUT: Mapping[str, Callable[[LinkRow], Hashable]] = {
    "cell": lambda row: (row.link_class, row.op, row.nodes, row.ranks),
    "ranks": lambda row: (row.link_class, row.nodes, row.ranks),
    "operation": lambda row: (row.link_class, row.op),
}
"""What is left out together: one operation at one rank count of a class; all operations at one rank
count of a class; one operation of a class at all rank counts."""


def measured() -> list[LinkRow]:
    """Return every measured and fitted row."""
    return [row for row in rows() if row.evidence == FITTED]


def in_sample(data: Sequence[LinkRow]) -> Errors:
    """Return errors on the rows of the fit itself."""
    return Errors(errors(fit(data), data), _kinds(data), len(data), 1)


def left_out(data: Sequence[LinkRow], how: str) -> Errors:
    """Return errors on each group of rows when all others are fitted.

    A row is passed over when nothing would be known of it: when its class has no other row, or when
    no other row, inside servers or between them as it is, has its operation.
    """
    groups: defaultdict[Hashable, list[LinkRow]] = defaultdict(list)
    for row in data:
        groups[LEFT_OUT[how](row)].append(row)
    values: list[float] = []
    kinds: list[str] = []
    count = fits = 0
    for group in groups.values():
        seen = [row for row in data if row not in group]
        known = {(row.op, row.nodes > 1) for row in seen}
        asked = [row for row in group if (row.op, row.nodes > 1) in known]
        if asked and any(row.link_class == group[0].link_class for row in seen):
            values += errors(fit(seen), asked)
            kinds += _kinds(asked)
            count, fits = count + len(asked), fits + 1
    return Errors(values, kinds, count, fits)


def _kinds(data: Sequence[LinkRow]) -> list[str]:
    return [kind_of(point.row) for point in points(data)]
