"""Counters of the live driver: plain integers, cheap to add to and cheap to read."""

from __future__ import annotations

from bisect import bisect_left
from typing import NamedTuple

from bedplate.core.units import MILLISECOND_NS

TTFT_BOUNDS_NS = tuple(
    ms * MILLISECOND_NS
    for ms in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 30_000, 60_000)
)
"""Upper bounds of the histogram buckets; one more bucket holds what is longer."""


class Histogram:
    """Counts of durations by bucket, their sum and number."""

    __slots__ = ("bounds", "counts", "number", "sum_ns")

    def __init__(self, bounds: tuple[int, ...] = TTFT_BOUNDS_NS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.number = 0
        self.sum_ns = 0

    def add(self, duration_ns: int) -> None:
        """Count one duration (>= 0)."""
        assert duration_ns >= 0, "durations do not fall below zero"
        self.counts[bisect_left(self.bounds, duration_ns)] += 1
        self.number += 1
        self.sum_ns += duration_ns


class Stats(NamedTuple):
    """A reading of the service, for /metrics and the console.

    Gauges: `turns_live` (accepted and not ended), `turns_running` (at an engine), `slots_busy`,
    `kv_moves`, `sessions`, `journal_backlog`. Counters since start: the rest. `ttft` and `queue`
    are by lane: arrival to first token, and arrival to first dispatch.
    """

    turns_live: int
    turns_running: int
    slots_busy: int
    kv_moves: int
    sessions: int
    journal_backlog: int
    journal_stalled: bool
    events: int
    notes: int
    turns_ended: dict[str, int]
    out_tokens: int
    handle_ns: int
    commits: int
    commit_records: int
    commit_append_ns: int
    commit_failures: int
    commit_batch_max: int
    ttft: tuple[Histogram, ...]
    queue: tuple[Histogram, ...]
