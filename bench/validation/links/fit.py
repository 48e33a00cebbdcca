"""Fit the constants of link classes and the factors of operations on measured rows.

All rows are fitted together. A term of a row's time is base × class × operation, so its logarithm
is a sum of unknowns, and the time a sum of four such exponentials: damped Gauss-Newton on the
logarithm of the time, with derivatives in closed form. The loss grows linearly for large errors, so
that one odd row bends nothing, and every unknown is held to its centre with the width below, so
that a class with few rows takes after the others.

The algebra is written out (`einsum`, elimination) instead of `@` and `numpy.linalg`: matrices are
small, and on them the threads of a linear algebra library cost fifteen times the processor's time
when the machine is busy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bedplate.perf.links_classes import Factors, FittedClass, units
from bedplate.perf.links_data import LinkRow

SIZES = (1 << 12, 1 << 16, 1 << 20, 1 << 24, 1 << 28)
"""Sizes, in bytes, at which a row is compared, as far as they lie inside what it was measured on:
4 and 64 KiB, 1, 16 and 256 MiB."""

TERMS = ("launch", "hop", "local", "wire")
NOISE = 0.08
"""Error in the logarithm of the time above which the loss is linear."""

_CENTRES = {
    False: {"launch": 5e3, "hop": 1e3, "local": 1e-3, "wire": 2e-3},
    True: {"launch": 1e5, "hop": 3e4, "local": 2e-2, "wire": 1.0},
}
_BASE_WIDTH = 2.0
_CLASS_WIDTHS = {"launch": 0.6, "hop": 0.6, "local": 1.0, "wire": 1.0, "crowding": 1.4}
_OPERATION_WIDTHS = {"launch": 0.6, "hop": 1.0, "local": 1.0, "wire": 0.3}
_STEPS_MAX = 60

Array = NDArray[np.float64]
Key = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Point:
    """One row at one size."""

    row: LinkRow
    size_bytes: int

    @property
    def between_nodes(self) -> bool:
        """True between servers."""
        return self.row.nodes > 1

    @property
    def ranks(self) -> int:
        """Ranks of the row; every measured row has them."""
        assert self.row.ranks is not None
        return self.row.ranks


def points(rows: Sequence[LinkRow]) -> list[Point]:
    """Return rows at each of `SIZES` that lies inside what they were measured on."""
    found = []
    for row in rows:
        assert row.size_min_bytes is not None
        assert row.size_max_bytes is not None
        found += [Point(row, s) for s in SIZES if row.size_min_bytes <= s <= row.size_max_bytes]
    return found


def crowds(row: LinkRow) -> bool:
    """Return whether ranks share the wire of this row's class: host trees, and ports of servers."""
    return row.nodes > 1 or "PCIe" in row.link


class _Problem:
    """Rows as arrays: which unknowns each term of each point multiplies, and how often."""

    def __init__(self, rows: Sequence[LinkRow]) -> None:
        self.index: dict[Key, int] = {}
        self.centre: list[float] = []
        self.width: list[float] = []
        cases = points(rows)
        self.measured = np.array([math.log(c.row.time_ns(c.size_bytes)) for c in cases])
        keys = [[self._keys(term, case) for case in cases] for term in TERMS]
        self.weights = np.zeros((len(TERMS), len(cases), len(self.index)))
        self.units = np.empty((len(TERMS), len(cases)))
        for c, case in enumerate(cases):
            count = units(case.row.op, case.ranks, case.row.nodes, case.size_bytes)
            self.units[:, c] = count[: len(TERMS)]
            for t in range(len(TERMS)):
                for key in keys[t][c]:
                    at = self.index[key]
                    self.weights[t, c, at] = math.log(count.crowd) if key[0] == "crowding" else 1.0

    def _keys(self, term: str, case: Point) -> list[Key]:
        family = "network" if case.between_nodes else "node"
        keys: list[tuple[Key, float, float]] = [
            (
                (term, "base", family),
                math.log(_CENTRES[case.between_nodes][term]),
                _BASE_WIDTH,
            ),
            ((term, "class", case.row.link_class), 0.0, _CLASS_WIDTHS[term]),
            ((term, family, case.row.op), 0.0, _OPERATION_WIDTHS[term]),
        ]
        if term == "wire" and crowds(case.row):
            crowding = ("crowding", "class", case.row.link_class)
            keys.append((crowding, 0.0, _CLASS_WIDTHS["crowding"]))
        for key, centre, width in keys:
            if key not in self.index:
                self.index[key] = len(self.index)
                self.centre.append(centre)
                self.width.append(width)
        return [key for key, _, _ in keys]

    def solve(self) -> Array:
        """Return the unknowns that lose least."""
        centre, width = np.array(self.centre), np.array(self.width)
        at, damping = centre.copy(), 1e-2
        terms, residual, loss = self._at(at, centre, width)
        for _ in range(_STEPS_MAX):
            shares = terms / terms.sum(axis=0)
            slope = np.einsum("tp,tpk->pk", shares, self.weights)
            weight = 1 / np.sqrt(1 + (residual / NOISE) ** 2) / NOISE**2
            weighted = slope * weight[:, None]
            curve = np.einsum("pk,pl->kl", weighted, slope) + np.diag(1 / width**2)
            push = np.einsum("pk,p->k", weighted, residual) + (at - centre) / width**2
            better = None
            while better is None and damping < 1e8:
                step = _solve(curve + damping * np.diag(np.diag(curve)), push)
                tried = self._at(at - step, centre, width)
                if tried[2] < loss:
                    better = tried
                    at = at - step
                else:
                    damping *= 4
            if better is None:
                break
            gain, (terms, residual, loss) = loss - better[2], better
            damping = max(damping / 6, 1e-7)
            if gain < 1e-5 * loss:
                break
        return at

    def _at(self, at: Array, centre: Array, width: Array) -> tuple[Array, Array, float]:
        terms = self.units * np.exp(np.einsum("tpk,k->tp", self.weights, at))
        residual = np.log(terms.sum(axis=0)) - self.measured
        loss = np.sum(2 * (np.sqrt(1 + (residual / NOISE) ** 2) - 1))
        return terms, residual, float(loss + np.sum(((at - centre) / width) ** 2))


def _solve(matrix: Array, vector: Array) -> Array:
    """Solve a symmetric positive definite system by elimination; it needs no pivots."""
    system = np.column_stack([matrix, vector])
    for row in range(len(vector)):
        right = system[:, row:]  # left of it, columns are done
        right[row] /= right[row, 0]
        factors = right[:, 0].copy()
        factors[row] = 0
        right -= factors[:, None] * right[row]
    solution: Array = system[:, -1]
    return solution


def fit(rows: Sequence[LinkRow]) -> Mapping[str, FittedClass]:
    """Return the class of every row, fitted on all of them. `error` is left at 0.

    Cost: about half a second for 159 rows.
    """
    problem = _Problem(rows)
    values = dict(zip(problem.index, problem.solve().tolist(), strict=True))
    found = {}
    for row in rows:
        family = "network" if row.nodes > 1 else "node"
        if row.link_class in found:
            continue
        mine = [r for r in rows if r.link_class == row.link_class]
        constants = {
            f"{term}_ns": math.exp(
                values[term, "base", family] + values[term, "class", row.link_class]
            )
            for term in TERMS
        }
        found[row.link_class] = FittedClass(
            name=row.link_class,
            link=row.link,
            between_nodes=row.nodes > 1,
            ranks_max=72 if "NVL72" in row.topology else max(Point(r, 0).ranks for r in mine),
            crowding=values.get(("crowding", "class", row.link_class), 0.0),
            factors=_factors(values, family),
            rows=len(mine),
            error=0.0,
            **constants,
        )
    return found


def _factors(values: Mapping[Key, float], family: str) -> dict[str, Factors]:
    operations = sorted({op for _, kind, op in values if kind == family})
    return {
        op: Factors(*(math.exp(values[term, family, op]) for term in TERMS)) for op in operations
    }


def errors(classes: Mapping[str, FittedClass], rows: Sequence[LinkRow]) -> list[float]:
    """Return |predicted ÷ measured - 1| of every point of the rows."""
    found = []
    for point in points(rows):
        row = point.row
        predicted = classes[row.link_class].time_ns(
            row.op, point.ranks, row.nodes, point.size_bytes
        )
        found.append(abs(predicted / row.time_ns(point.size_bytes) - 1))
    return found
