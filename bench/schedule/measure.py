"""What is read off a play: goodput, session times, times to the first token; and their ratios."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from random import Random
from typing import NamedTuple

from bedplate.core.units import SECOND_NS
from bedplate.twin.goodput import SloClass, slo_class
from bedplate.twin.workload.form import Workload
from bench.harness.stats import quantile
from bench.schedule.play import Played

RESAMPLES = 2_000
CONFIDENCE = 0.9


class Outcome(NamedTuple):
    """One play. Times in seconds; a session's time is from its start to the end of its last turn.

    A session that is lost counts with the time at which it was given up.
    """

    offered: int
    good: int
    seconds: float
    goodput: float
    session_median: float
    session_p95: float
    ttft_p50: float
    ttft_p95: float
    tpot_p95: float
    sessions: int
    lost: int
    retries: int
    cached_share: float


def good(row: Played, slo: SloClass) -> bool:
    """Tell whether a turn ended well, its first token and its pace within the limits of a class."""
    if row.error or row.first_s < 0:
        return False
    if row.first_s - row.asked_s > slo.ttft_ns / SECOND_NS:
        return False
    return row.out < 2 or pace_s(row) <= slo.tpot_ns / SECOND_NS


def pace_s(row: Played) -> float:
    """Return the seconds for each output token after the first; there are two at least."""
    return (row.end_s - row.first_s) / (row.out - 1)


def outcome(workload: Workload, rows: Sequence[Played], slo_factor: float) -> Outcome:
    """Add up a play: every turn of the workload is offered, whether it came to be asked or not.

    The limits are those of each session's lane, stretched by the factor.
    """
    classes = [slo_class(session.lane, slo_factor) for session in workload.sessions]
    offered = sum(len(session.turns) for session in workload.sessions)
    begin = min(row.asked_s for row in rows)
    end = max(max(row.end_s, row.asked_s) for row in rows)
    ended = [row for row in rows if not row.error]
    done = [0] * len(workload.sessions)
    last = [end] * len(workload.sessions)
    first = [end] * len(workload.sessions)
    for row in rows:
        first[row.session] = min(first[row.session], row.asked_s)
        if not row.error:
            done[row.session] += 1
            if done[row.session] == len(workload.sessions[row.session].turns):
                last[row.session] = row.end_s
    times = [last[n] - first[n] for n in range(len(done))]
    lost = sum(done[n] < len(session.turns) for n, session in enumerate(workload.sessions))
    firsts = [row.first_s - row.asked_s for row in ended] or [end - begin]
    paces = [pace_s(row) for row in ended if row.out > 1] or [0.0]
    later = [row for row in ended if row.turn]
    prompt = sum(row.prompt for row in later)
    count = sum(good(row, classes[row.session]) for row in rows)
    return Outcome(
        offered,
        count,
        end - begin,
        count / (end - begin),
        statistics.median(times),
        quantile(times, 0.95),
        quantile(firsts, 0.5),
        quantile(firsts, 0.95),
        quantile(paces, 0.95),
        len(times),
        lost,
        sum(row.retries for row in rows),
        sum(row.cached for row in later) / prompt if prompt else 0.0,
    )


class Ratio(NamedTuple):
    """A ratio of two means over seeds, with the interval of its resampled values."""

    value: float
    low: float
    high: float

    def text(self) -> str:
        """Return the ratio with its interval."""
        return f"{self.value:.2f} ({self.low:.2f} to {self.high:.2f})"


def ratio(over: Sequence[float], under: Sequence[float]) -> Ratio:
    """Return mean(over) ÷ mean(under), both by seed, and its bootstrap interval.

    Seeds are drawn in pairs, since both were measured on the same load. The interval holds 90 % of
    the resampled ratios; with one seed it has no width.
    """
    assert len(over) == len(under) > 0
    random = Random("bootstrap")
    seeds = range(len(over))
    found = []
    for _ in range(RESAMPLES):
        drawn = random.choices(seeds, k=len(over))
        found.append(_divided(sum(over[n] for n in drawn), sum(under[n] for n in drawn)))
    tail = (1 - CONFIDENCE) / 2
    return Ratio(_divided(sum(over), sum(under)), quantile(found, tail), quantile(found, 1 - tail))


def _divided(over: float, under: float) -> float:
    if under > 0:
        return over / under
    return 1.0 if over == 0 else float("inf")
