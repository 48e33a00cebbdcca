"""Which of the waiting turns of a lane goes first: the least work for each session that waits.

A turn's rank is what it will probably cost, divided by what its session's wait costs. Short work
first keeps the mean low, and a turn that finds its KV is short: so sessions that were let on are
carried through before new ones begin. A session that is older than 95 % of those that ended in its
lane costs TAIL times as much to hold, which is what bounds the last few: the mean of the tail
beyond the quantile counts 1 / (1 - 0.95) times in a tail mean (CVaR), and once in the mean.

The quantile is learned from sessions that ended, by stochastic approximation: it rises by 19 steps
with one that took longer, and falls by one with one that did not. A step is 1/64 of it.
"""

from __future__ import annotations

from bedplate.core.fairness import expected_cost
from bedplate.core.rules import Rank
from bedplate.core.state import State
from bedplate.core.states import Group, Session, Turn
from bedplate.core.units import MILLISECOND_NS

TAIL = 21
"""What a session in the tail costs to hold, against 1 for another: 1 + 1 / (1 - 0.95)."""
_RISES = 19
_STEP_SHIFT = 6


def tail_risk(state: State, turn: Turn) -> Rank:
    """Rank a turn by its work over what its session costs to hold, then by the session's age."""
    session = turn.branch.session
    tail_ns = turn.branch.group.tail_ns[turn.lane]
    late = 0 < tail_ns < state.now_ns - session.created_ns
    cost = expected_cost(turn)
    return (cost if late else TAIL * cost, session.serial, turn.serial)


def note_end(group: Group, session: Session, ended_ns: int) -> None:
    """Fold the time from a session's first call to the end of its last turn into the quantile."""
    took_ns = ended_ns - session.created_ns
    before_ns = group.tail_ns[session.lane]
    step_ns = max(MILLISECOND_NS, before_ns >> _STEP_SHIFT)
    if before_ns == 0:
        group.tail_ns[session.lane] = took_ns
    elif took_ns > before_ns:
        group.tail_ns[session.lane] = before_ns + _RISES * step_ns
    else:
        group.tail_ns[session.lane] = max(step_ns, before_ns - step_ns)
