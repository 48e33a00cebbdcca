"""Goodput: what ended well and within every limit of its lane's SLO class.

The classes are those of every figure of the project:

    interactive   a turn    TTFT <= 2 s, TPOT <= 100 ms
    shared        a turn    TTFT <= 5 s, TPOT <= 200 ms
    batch         a session from its start to the end of its last turn <= 15 min

One factor stretches all five times, for cards that are slow by nature; whoever prints a goodput
prints its factor. TTFT counts from the turn's arrival at the base to its first token, waits
included; TPOT is (end − first token) ÷ (output tokens − 1), and a turn of one token has none.

A turn *ends well* with `stop`, `length` or `tool_calls`. Everything that was offered counts in the
share, that is every turn of the workload: one that was refused, failed, cancelled or never ended is
not good, nor is one that was never asked since its session had been given up before. In the first
two lanes goodput counts turns; a session is good when all of its turns arrived and were. In batch
it counts sessions; all of their turns must end well.

Rates are over the whole run, from the first arrival to the last end. The time in which no session
begins any more and the last ones end is part of it: rates compare runs of one load, shares any two.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from bedplate.core.limits import BATCH
from bedplate.core.units import MILLISECOND_NS, MINUTE_NS, SECOND_NS
from bedplate.twin.outcome import SessionRow, TurnRow

ENDED_WELL = frozenset({"stop", "length", "tool_calls"})
"""Statuses of turns that gave their whole answer."""


class SloClass(NamedTuple):
    """Limits of one lane, in nanoseconds; 0 is no limit."""

    ttft_ns: int
    tpot_ns: int
    session_ns: int


_CLASSES = (
    SloClass(2 * SECOND_NS, 100 * MILLISECOND_NS, 0),
    SloClass(5 * SECOND_NS, 200 * MILLISECOND_NS, 0),
    SloClass(0, 0, 15 * MINUTE_NS),
)


def slo_class(lane: int, factor: float) -> SloClass:
    """Return the class of a lane, by its rank, with its times stretched by a factor above 0."""
    assert factor > 0
    return SloClass(*(round(limit_ns * factor) for limit_ns in _CLASSES[lane]))


class Goodput(NamedTuple):
    """What was good, out of what was offered.

    `unit`: turns | sessions. `share` is good ÷ offered, `per_s` good ÷ seconds of the run.
    `sessions_good` and `sessions_per_s` count whole sessions in every lane, so that lanes can be
    compared and added up.
    """

    unit: str
    offered: int
    good: int
    share: float
    per_s: float
    sessions_good: int
    sessions_per_s: float


def tpot_ns(row: TurnRow) -> float | None:
    """Return the time per output token after the first, None for fewer than two tokens."""
    if row.first_ns < 0 or row.end_ns < 0 or row.out_tokens < 2:
        return None
    return (row.end_ns - row.first_ns) / (row.out_tokens - 1)


def turn_is_good(row: TurnRow, slo: SloClass) -> bool:
    """Tell whether a turn ended well and within the limits that its class sets to turns."""
    if row.status not in ENDED_WELL or row.first_ns < 0:
        return False
    if slo.ttft_ns and row.first_ns - row.arrival_ns > slo.ttft_ns:
        return False
    pace_ns = tpot_ns(row)
    return not slo.tpot_ns or pace_ns is None or pace_ns <= slo.tpot_ns


def session_is_good(row: SessionRow, good_turns: int, turns: int, slo: SloClass) -> bool:
    """Tell whether all `turns` turns of a session were good, and it ended in its class's time."""
    if row.failed or row.end_ns < 0 or good_turns < turns:
        return False
    return not slo.session_ns or row.end_ns - row.start_ns <= slo.session_ns


def count(
    lane: int,
    turns_good: Sequence[bool],
    sessions_good: Iterable[bool],
    *,
    turns_offered: int,
    duration_s: float,
) -> Goodput:
    """Add up one lane over a run of `duration_s` virtual seconds.

    `turns_good` has the turns that arrived, `turns_offered` counts those of the workload.
    """
    sessions = list(sessions_good)
    whole = sum(sessions)
    by_session = lane == BATCH
    offered = len(sessions) if by_session else turns_offered
    good = whole if by_session else sum(turns_good)
    return Goodput(
        unit="sessions" if by_session else "turns",
        offered=offered,
        good=good,
        share=good / offered if offered else 0.0,
        per_s=good / duration_s if duration_s > 0 else 0.0,
        sessions_good=whole,
        sessions_per_s=whole / duration_s if duration_s > 0 else 0.0,
    )
