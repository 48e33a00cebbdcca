"""Fit what can be fitted of classes that were measured in part: one efficiency, two exchanges."""

from __future__ import annotations

import math
import statistics
from typing import NamedTuple

import numpy as np

from bedplate.perf.links import find_class
from bedplate.perf.links_classes import Exchange, units
from bedplate.perf.links_data import LinkRow, rows

MESH_CLASS, MESH_ROWS = "atlas_800_a2", "910b"
EXCHANGE_CLASS = "cloudmatrix384"
TOKENS, LOW_LATENCY_TOKENS, HIDDEN, EXPERTS = 4096, 128, 7168, 8
TOKEN_BYTES = {"dispatch": 1, "combine": 2}
"""Bytes a value: whole time × rate of the low-latency rows gives 1.04 and 1.99."""


class Efficiency(NamedTuple):
    """Part of the links' rate that large messages reach, and the median error of assuming it."""

    value: float
    error: float
    rows: int


def mesh_efficiency() -> Efficiency:
    """Return what collectives of large messages reach of the mesh's links (910B, six rows).

    n cards of a mesh have n - 1 links each in use. The error is that of the rate.
    """
    mesh = find_class(MESH_CLASS)
    peak = getattr(mesh, "peak_gb_per_s", None)
    assert isinstance(peak, int | float)
    reached = []
    for row in rows():
        if row.link_class == MESH_ROWS:
            assert row.ranks is not None
            assert row.gb_per_s is not None
            wire = units(row.op, row.ranks, 1, 1).wire
            reached.append(row.gb_per_s * wire / (peak * (row.ranks - 1)))
    value = math.exp(statistics.fmean(math.log(part) for part in reached))
    return Efficiency(value, statistics.median(abs(value / x - 1) for x in reached), len(reached))


class ExchangePoint(NamedTuple):
    """One measured exchange: ranks, bytes that a rank sends, time."""

    ranks: int
    size_bytes: float
    time_ns: float


def exchange_points(op: str) -> list[ExchangePoint]:
    """Return the published exchanges of a supernode: rates at 4,096 tokens, times at 128."""
    mine = [row for row in rows() if (row.link_class, row.op) == (EXCHANGE_CLASS, op)]
    return [_point(row, TOKEN_BYTES[op]) for row in mine]


def _point(row: LinkRow, value_bytes: int) -> ExchangePoint:
    assert row.ranks is not None
    assert row.gb_per_s is not None
    if row.whole_ns is not None:
        return ExchangePoint(row.ranks, row.whole_ns * row.gb_per_s, row.whole_ns)
    size = TOKENS * HIDDEN * EXPERTS * value_bytes
    return ExchangePoint(row.ranks, size, size / row.gb_per_s)


def exchange(op: str) -> Exchange:
    """Fit launch, rate and crowding of an exchange on the logarithm of its times.

    Crowding is scanned, and for each the two others are a linear fit of relative errors.
    """
    cases = exchange_points(op)
    time = np.array([case.time_ns for case in cases])
    size = np.array([case.size_bytes for case in cases])
    share = np.array([case.ranks / 8 for case in cases])
    best: tuple[float, Exchange] | None = None
    for crowding in np.arange(0, 1.0001, 0.01):
        columns = np.stack([1 / time, size * share**crowding / time], axis=1)
        (launch, wire), *_ = np.linalg.lstsq(columns, np.ones(len(cases)), rcond=None)
        launch = max(float(launch), 0.0)
        if launch == 0:
            wire = float(np.sum(columns[:, 1]) / np.sum(columns[:, 1] ** 2))
        off = np.abs(columns @ np.array([launch, wire]) - 1)
        loss = float(np.sum(off**2))
        if best is None or loss < best[0]:
            found = Exchange(
                launch_ns=launch,
                wire_ns=float(wire),
                crowding=round(float(crowding), 2),
                error=float(np.median(off)),
            )
            best = loss, found
    assert best is not None
    return best[1]
