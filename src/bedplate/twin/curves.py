"""The curves of a run, as data: what the terminal and the picture both draw.

Over time: KV on cards and in the pool, turns running and waiting. By lane: how many turns got their
first token, and how many sessions ended, within a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from bedplate.core.limits import LANE_NAMES
from bedplate.core.units import SECOND_NS
from bedplate.twin.faults import NEVER
from bedplate.twin.goodput import ENDED_WELL
from bedplate.twin.outcome import Outcome, Sample
from bedplate.twin.spread import quantile
from bedplate.twin.workload.form import Workload

POINTS = 200
"""Points of a distribution's curve."""


class Line(NamedTuple):
    """One curve; `xs` rise, both have the same length of at least 1."""

    name: str
    xs: tuple[float, ...]
    ys: tuple[float, ...]


class Mark(NamedTuple):
    """What lasts from one x to another."""

    name: str
    begin: float
    end: float


class Panel(NamedTuple):
    """One set of axes. `y_max` is the top of the scale, 0 for the largest value.

    `x_log`: equal steps to the right multiply x. Values of 0 then stand at the left edge. `marks`
    are the faults, where x is time.
    """

    title: str
    x_label: str
    y_label: str
    y_max: float
    lines: tuple[Line, ...]
    x_log: bool = False
    marks: tuple[Mark, ...] = ()


def panels(outcome: Outcome, workload: Workload) -> tuple[Panel, ...]:
    """Return every panel that has something to show. Cost: O(turns log turns + samples)."""
    found = [*_over_time(outcome), *_distributions(outcome, workload)]
    return tuple(panel for panel in found if panel.lines)


def _over_time(outcome: Outcome) -> Iterator[Panel]:
    samples = outcome.samples
    if not samples:
        return
    xs = tuple(sample.time_ns / SECOND_NS for sample in samples)

    def line(name: str, value: Callable[[Sample], float]) -> Line:
        return Line(name, xs, tuple(value(sample) for sample in samples))

    marks = tuple(_marks(outcome))
    room, size = max(1, outcome.kv_total_tokens), outcome.pool_total_bytes
    kv = [
        line("held", lambda sample: 100 * sample.kv_used_tokens / room),
        line("of running turns", lambda sample: 100 * sample.kv_running_tokens / room),
    ]
    if size:
        kv.append(line("pool", lambda sample: 100 * sample.pool_bytes / size))
    yield Panel("KV occupancy", "time, s", "%", 100.0, tuple(kv), marks=marks)
    turns = (
        line("running", lambda sample: sample.running),
        line("waiting", lambda sample: sample.waiting),
    )
    yield Panel("turns", "time, s", "turns", 0.0, turns, marks=marks)
    sessions = line("open", lambda sample: sample.sessions)
    yield Panel("sessions", "time, s", "sessions", 0.0, (sessions,), marks=marks)


def _marks(outcome: Outcome) -> Iterator[Mark]:
    """Yield each fault that happened, cut to the run."""
    for fault in outcome.faults:
        if fault.at_ns <= outcome.duration_ns:
            end_ns = outcome.duration_ns if fault.end_ns == NEVER else fault.end_ns
            name = f"{fault.kind} {fault.thing}".rstrip()
            end_s = min(end_ns, outcome.duration_ns) / SECOND_NS
            yield Mark(name, fault.at_ns / SECOND_NS, end_s)


def _distributions(outcome: Outcome, workload: Workload) -> Iterator[Panel]:
    lane_of = [session.lane for session in workload.sessions]
    ttft: list[list[float]] = [[] for _ in LANE_NAMES]
    for turn in outcome.turns:
        if turn.status in ENDED_WELL and turn.first_ns >= 0:
            ttft[lane_of[turn.session]].append((turn.first_ns - turn.arrival_ns) / SECOND_NS)
    yield Panel("TTFT", "seconds", "% of turns", 100.0, tuple(_shares(ttft)), x_log=True)
    times: list[list[float]] = [[] for _ in LANE_NAMES]
    for session in outcome.sessions:
        if not session.failed and session.end_ns >= 0:
            times[lane_of[session.session]].append((session.end_ns - session.start_ns) / SECOND_NS)
    shares = tuple(_shares(times))
    yield Panel("session time", "seconds", "% of sessions", 100.0, shares, x_log=True)


def _shares(values: Sequence[list[float]]) -> Iterator[Line]:
    """Yield each lane's cumulative distribution: at x, y % of the values are at most x."""
    for name, each in zip(LANE_NAMES, values, strict=True):
        if each:
            ordered = sorted(each)
            steps = range(POINTS + 1)
            xs = tuple(quantile(ordered, step / POINTS) for step in steps)
            yield Line(name, xs, tuple(100 * step / POINTS for step in steps))
