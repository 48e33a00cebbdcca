"""Cells of the comparison: one trace on one site under one policy, each in a process of its own.

Nothing here is timed, so cells may share the machine.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeVar

from bench.baselines.catalogue import BASELINES
from bench.harness.processes import workers
from bench.schedule_twin import play
from bench.schedule_twin.limits import Limits, limits
from bench.schedule_twin.loads import Load, Size, load
from bench.schedule_twin.measure import Found, measure
from bench.schedule_twin.sites import site

OURS, PARTITIONS = "bedplate", "partitions"
POLICIES = (OURS, *(each.name for each in BASELINES), PARTITIONS)

Task = TypeVar("Task")
Answer = TypeVar("Answer")


class Cell(NamedTuple):
    """What one process is asked."""

    site: str
    trace: str
    size: Size
    share: float
    policy: str
    seed: int


class Answered(NamedTuple):
    """What came of it. `rate` sessions a second began; `failures` of calls by reason."""

    cell: Cell
    found: Found
    limits: Limits
    rate: float
    failures: dict[str, int]


def answer(cell: Cell) -> Answered:
    """Run one cell."""
    made, bounds = _made(cell.site, cell.trace, cell.size, cell.share, cell.seed)
    where = site(cell.site)
    if cell.policy == OURS:
        outcome = play.shipped(where, made.workload, seed=cell.seed)
    else:
        known = {each.name: each for each in BASELINES}
        if cell.policy == PARTITIONS:
            outcome = play.partitioned(where, made.workload, known["lru"], seed=cell.seed)
        else:
            outcome = play.baseline(where, made.workload, known[cell.policy], seed=cell.seed)
    found = measure(outcome, made.workload)
    return Answered(cell, found, bounds, made.sessions_per_s, dict(outcome.failures))


@lru_cache(maxsize=2)
def _made(where: str, trace: str, size: Size, share: float, seed: int) -> tuple[Load, Limits]:
    """Return a load with its bounds; neighbours in a row of cells share them."""
    at = site(where)
    made = load(trace, at, size, share=share, seed=seed)
    return made, limits(made.workload, made.costs, at)


def spread_out(work: Callable[[Task], Answer], tasks: Sequence[Task]) -> Iterator[Answer]:
    """Do tasks in as many processes as there are processors; yield answers in order."""
    count = max(1, min(len(tasks), len(os.sched_getaffinity(0))))
    with workers(count) as pool:
        yield from pool.map(work, tasks)


def cells(
    places: Iterable[tuple[str, str, Size]],
    shares: Sequence[float],
    policies: Sequence[str],
    seed: int,
) -> list[Cell]:
    """Return every policy on every trace and site at every load."""
    return [
        Cell(where, trace, size, share, policy, seed)
        for where, trace, size in places
        for share in shares
        for policy in policies
    ]
