"""Part `burst`: ten times the usual load for five minutes.

Sessions begin at 0.3 of what the box can carry, then ten times as fast, then as before. A lane
refuses who would wait longer than its class promises (`refuse_seconds`, which comes at 15 s, for
those who rather wait). Good turns are those inside their class's limits, by when they arrived. A
refusal is late by what passed since its call; recovery is over when good turns have the share of
all turns that they had before, in windows of ten seconds, and keep it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from bedplate.core import actions as act
from bedplate.core import events as ev
from bedplate.core.base import Base
from bedplate.core.ids import TurnId
from bedplate.core.limits import Policy
from bedplate.core.units import MILLISECOND_NS, SECOND_NS
from bedplate.twin.goodput import slo_class, turn_is_good
from bedplate.twin.outcome import TurnRow
from bedplate.twin.run import simulate
from bedplate.twin.workload.form import Workload
from bedplate.twin.workload.transform import assign, restart
from bench.harness.claims import Measured, Spec
from bench.harness.run import Part, Run
from bench.schedule_twin.costs import costs
from bench.schedule_twin.loads import Size, places, rate_for, sessions_of
from bench.schedule_twin.sites import BOX, site

TRACE = "azure-llm-2023"
SHARE = 0.3
TIMES = 10.0
QUIET_S = 120.0
WINDOW_S = 10.0
RECOVERED = 0.95
"""Share of the good turns' share before, at which a window counts as recovered."""


class Refusals:
    """How long each refusal took: from a call to the word that it is not served."""

    def __init__(self) -> None:
        self.late_ns: list[int] = []
        self._asked_ns: dict[TurnId, int] = {}

    def heard(self, base: Base, now_ns: int, event: ev.Event, done: tuple[act.Action, ...]) -> None:
        """Note calls and refusals."""
        if isinstance(event, ev.TurnArrived):
            self._asked_ns[event.turn] = now_ns
        elif isinstance(event, ev.TurnEnded):
            self._asked_ns.pop(event.turn, None)
        for action in done:
            if isinstance(action, act.Refuse):
                self.late_ns.append(now_ns - self._asked_ns.pop(action.turn))


class Phases(NamedTuple):
    """Good turns a second before and during the burst; seconds until good turns are back."""

    before: float
    during: float
    recovery_s: float


def measure(run: Run) -> Mapping[str, Measured]:
    """Run one burst."""
    burst_s = 60.0 if run.quick else 300.0
    at = site(BOX)
    at = replace(at, policy=promised(at.policy))
    seed = run.seeds[0]
    sample = sessions_of(TRACE, at, Size(4_000), seed=seed)
    rate = rate_for(sample, costs(sample, at.cards[0].profile), at, SHARE)
    roots = round(rate * (2 * QUIET_S + TIMES * burst_s))
    asked = sessions_of(TRACE, at, Size(roots), seed=seed)
    workload = bursting(assign(restart(asked, rate, seed=seed), places()), burst_s)
    refusals = Refusals()
    outcome = simulate(at, workload, seed=seed, samples=0, heard=refusals.heard)
    found = phases(outcome.turns, workload, burst_s)
    late_ms = max(refusals.late_ns, default=0) / MILLISECOND_NS
    lost = sum(row.failed for row in outcome.sessions)
    run.figure(
        "burst",
        f"{found.before:.1f} good turns/s before, {found.during:.1f} during; "
        f"{len(refusals.late_ns):,} refusals, sessions given up {lost:,} of {roots:,}; "
        f"back after {found.recovery_s:.0f} s",
    )
    run.rounds["burst"] = {**found._asdict(), "refusals": len(refusals.late_ns), "lost": lost}
    return {
        "burst_goodput": Measured(found.during / found.before, 1, "good turns/s before"),
        "burst_refusal_ms": Measured(late_ms, len(refusals.late_ns), "the slowest refusal"),
        "burst_recovery_s": Measured(found.recovery_s, 1, f"windows of {WINDOW_S:g} s"),
    }


def promised(policy: Policy) -> Policy:
    """Return a policy whose lanes refuse sessions that would wait longer than their class allows.

    Lanes that refuse nobody stay so.
    """
    lanes = tuple(
        lane._replace(refuse_ns=slo_class(rank, 1.0).ttft_ns) if lane.refuse_ns else lane
        for rank, lane in enumerate(policy.lanes)
    )
    return policy._replace(lanes=lanes)


def bursting(workload: Workload, burst_s: float) -> Workload:
    """Let the sessions between `QUIET_S` and `TIMES` × `burst_s` later begin `TIMES` as fast."""

    def moved(start_ns: int) -> int:
        quiet_ns, burst_ns = QUIET_S * SECOND_NS, burst_s * SECOND_NS
        if start_ns <= quiet_ns:
            return start_ns
        inside_ns = (start_ns - quiet_ns) / TIMES
        if inside_ns <= burst_ns:
            return round(quiet_ns + inside_ns)
        return round(start_ns - burst_ns * (TIMES - 1))

    sessions = tuple(
        session if session.spawn is not None else session._replace(start_ns=moved(session.start_ns))
        for session in workload.sessions
    )
    source = f"{workload.source}; {TIMES:g} times as fast for {burst_s:g} s after {QUIET_S:g} s"
    return workload._replace(sessions=sessions, source=source)


def phases(rows: Sequence[TurnRow], workload: Workload, burst_s: float) -> Phases:
    """Sort turns by when they arrived. A turn that found no answer is not good."""
    good: dict[int, int] = {}
    asked: dict[int, int] = {}
    during = before = before_all = 0
    begin_ns, end_ns = QUIET_S * SECOND_NS, (QUIET_S + burst_s) * SECOND_NS
    last_ns = max(session.start_ns for session in workload.sessions)
    for row in rows:
        lane = workload.sessions[row.session].lane
        slo = slo_class(lane, 1.0)
        met = turn_is_good(row, slo)
        if slo.session_ns:
            met = met and row.end_ns - row.arrival_ns <= slo.session_ns
        if row.arrival_ns < begin_ns:
            before += met
            before_all += 1
        elif row.arrival_ns < end_ns:
            during += met
        elif row.arrival_ns <= last_ns:
            window = int((row.arrival_ns - end_ns) / SECOND_NS / WINDOW_S)
            asked[window] = asked.get(window, 0) + 1
            good[window] = good.get(window, 0) + met
    usual = before / before_all
    bad = [each for each in asked if good[each] / asked[each] < RECOVERED * usual]
    return Phases(before / QUIET_S, during / burst_s, (max(bad, default=-1) + 1) * WINDOW_S)


PART = Part(
    "burst",
    (
        Spec("burst_goodput", "ratio", ">= 1", "good turns/s in a burst of 10 times, over before"),
        Spec("burst_refusal_ms", "ms", "<= 50", "slowest refusal, from the call to the word"),
        Spec("burst_recovery_s", "s", "<= 30", "after the burst, until turns are good as before"),
    ),
    measure,
)
