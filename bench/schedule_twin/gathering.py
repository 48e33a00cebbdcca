"""Batch work that is gathered: held back until enough of it waits, or for a bounded time.

A rule for comparison: it won nothing and is not in the core (ADR 0020). New batch turns wait until
`count` of them do while nothing above them waits, or the oldest has waited for `most_ns`; then all
that fit start in one step.
"""

from __future__ import annotations

from collections.abc import Callable

from bedplate.core import placement
from bedplate.core.group import Group
from bedplate.core.limits import BATCH, INTERACTIVE, SHARED
from bedplate.core.placement import Plan
from bedplate.core.state import State
from bedplate.core.states import Turn


def gathered(count: int, most_ns: int) -> Callable[[State, Turn], Plan | None]:
    """Return a rule that plans as the core does, for batch turns once they are gathered.

    It serves one run: it remembers when it last let go.
    """
    let_go_ns = -1

    def plan(state: State, turn: Turn) -> Plan | None:
        nonlocal let_go_ns
        if turn.lane != BATCH or turn.attempt or state.now_ns == let_go_ns:
            return placement.plan(state, turn)
        group = turn.branch.group
        waiting = [turn for queue in group.queues[BATCH].values() for turn in queue]
        oldest_ns = min((one.since_ns for one in waiting), default=state.now_ns)
        above = group.queues[INTERACTIVE] or group.queues[SHARED]
        if (len(waiting) >= count and not above) or state.now_ns - oldest_ns >= most_ns:
            let_go_ns = state.now_ns
            return placement.plan(state, turn)
        turn.why = "gathering"
        _wake(state, group, oldest_ns + most_ns)
        return None

    return plan


def _wake(state: State, group: Group, at_ns: int) -> None:
    """Let the core look at the group again then."""
    if not state.now_ns < group.wake_ns <= at_ns:
        group.wake_ns = at_ns
        state.push_deadline(at_ns, "admit", group.model)
