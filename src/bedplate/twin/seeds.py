"""Several runs that differ by their seed: what is the same in all of them, and what is luck."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import NamedTuple

from bedplate.twin.report import LaneReport, Report
from bedplate.twin.spread import Spread


class Measure(NamedTuple):
    """One figure of one lane over `n` runs: those in which it could be measured.

    Times are seconds. `spread` is (most − least) ÷ median, None where the median is 0.
    """

    lane: str
    measure: str
    n: int
    median: float
    least: float
    most: float
    spread: float | None


GOOD = "good"
"""The measure that is a share."""


def measures(reports: Sequence[Report]) -> Iterator[Measure]:
    """Yield each measure of each lane, then of all of them.

    Args:
        reports: One for each seed, of the same scenario.
    """
    lanes = {lane.lane: None for report in reports for lane in report.lanes}
    for name in lanes:
        rows = [lane for report in reports for lane in report.lanes if lane.lane == name]
        yield from _of_lane(rows)
    if len(lanes) != 1:
        yield from _of_lane([report.overall for report in reports])


def binds(reports: Sequence[Report]) -> dict[str, int]:
    """Return how many runs each resource binds first, the most frequent first."""
    return dict(Counter(report.bottleneck.binds for report in reports).most_common())


def _of_lane(rows: Sequence[LaneReport]) -> Iterator[Measure]:
    wanted: dict[str, Callable[[LaneReport], float | None]] = {
        GOOD: lambda lane: lane.goodput.share,
        "sessions/s": lambda lane: lane.goodput.sessions_per_s,
        "TTFT p50": lambda lane: _at(lane.times.ttft, "p50"),
        "TTFT p95": lambda lane: _at(lane.times.ttft, "p95"),
        "TPOT p50": lambda lane: _at(lane.times.tpot, "p50"),
        "TPOT p95": lambda lane: _at(lane.times.tpot, "p95"),
        "queue p95": lambda lane: _at(lane.times.queue, "p95"),
        "session p50": lambda lane: _at(lane.times.session, "p50"),
        "session p95": lambda lane: _at(lane.times.session, "p95"),
    }
    for name, value_of in wanted.items():
        values = [value for row in rows if (value := value_of(row)) is not None]
        if values:
            middle, least, most = median(values), min(values), max(values)
            spread = (most - least) / middle if middle else None
            yield Measure(rows[0].lane, name, len(values), middle, least, most, spread)


def _at(found: Spread | None, name: str) -> float | None:
    return None if found is None else float(getattr(found, name))
