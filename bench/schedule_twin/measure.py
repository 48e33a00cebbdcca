"""What a run came to: good turns, session times, first tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bedplate.core.limits import BATCH
from bedplate.core.units import SECOND_NS
from bedplate.twin.goodput import ENDED_WELL, slo_class, turn_is_good
from bedplate.twin.outcome import Outcome
from bedplate.twin.workload.form import Workload


class Found(NamedTuple):
    """One run. Times in seconds; `good` counts turns inside their class's limits of all `offered`.

    A turn of the batch lane is good when its session ended inside its limit. `session_s` is the
    mean session time over every session, `gaps_s` of it the tool gaps that the workload says.
    """

    good: int
    offered: int
    sessions: int
    sessions_done: int
    session_s: float
    gaps_s: float
    ttft_p50_s: float
    ttft_p99_s: float
    interactive_p99_s: float
    duration_s: float
    out_tokens: int


def measure(outcome: Outcome, workload: Workload, *, slo_factor: float = 1.0) -> Found:
    """Add up one run."""
    sessions = workload.sessions
    batch = slo_class(BATCH, slo_factor)
    in_time = [
        not row.failed and 0 <= row.end_ns <= row.start_ns + batch.session_ns
        for row in outcome.sessions
    ]
    good = 0
    for row in outcome.turns:
        lane = sessions[row.session].lane
        met = turn_is_good(row, slo_class(lane, slo_factor))
        good += met and (lane != BATCH or in_time[row.session])
    ended = [row for row in outcome.turns if row.status in ENDED_WELL]
    ttft = [(row.first_ns - row.arrival_ns) / SECOND_NS for row in ended]
    urgent = [
        (row.first_ns - row.arrival_ns) / SECOND_NS
        for row in ended
        if sessions[row.session].lane == 0
    ]
    done = [row for row in outcome.sessions if not row.failed and row.end_ns >= 0]
    gaps = [sum(turn.gap_ns for turn in sessions[row.session].turns[1:]) for row in done]
    return Found(
        good=good,
        offered=sum(len(session.turns) for session in sessions),
        sessions=len(sessions),
        sessions_done=len(done),
        session_s=_mean([row.end_ns - row.start_ns for row in done]),
        gaps_s=_mean(gaps),
        ttft_p50_s=_quantile(ttft, 0.5),
        ttft_p99_s=_quantile(ttft, 0.99),
        interactive_p99_s=_quantile(urgent, 0.99),
        duration_s=outcome.duration_ns / SECOND_NS,
        out_tokens=sum(row.out_tokens for row in ended),
    )


def _mean(values_ns: Sequence[int]) -> float:
    return float(np.mean(values_ns)) / SECOND_NS if values_ns else float("inf")


def _quantile(values: Sequence[float], share: float) -> float:
    return float(np.quantile(values, share)) if values else float("inf")
