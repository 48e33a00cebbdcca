"""Scheduling in the twin: real traces, two sites, every baseline, and the bounds beside them."""

from __future__ import annotations

from bench.harness.run import Bench
from bench.retention import part as retention
from bench.schedule_twin import batch, burst, ladder, noisy, traces

BENCH = Bench(
    name="schedule-twin",
    summary="scheduling against baselines and bounds, on four traces and two sites of the twin",
    parts=(
        retention.PART,
        traces.PART,
        ladder.PART,
        batch.PART,
        burst.PART,
        noisy.PART,
    ),
)
"""Seeds: the first draws loads, all of them draw retention's."""
