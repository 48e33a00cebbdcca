"""Which of the waiting turns of a lane goes first: the least work, as far as patience goes.

A turn's rank is when it arrived, or when its session was refused first (`demand`), and PATIENCE
times as long as its work will probably take. So it lets those pass that arrive later and are
shorter, for as long as that saves more than it costs, and no longer: whatever arrives, a turn waits
for no turn that was asked more than PATIENCE times its own work after it. A turn that finds its KV
is short, so sessions that were let on are carried through before new ones begin.

Work first alone is as good for the mean and leaves the longest turns of a crowded tenant behind
(P99 of quiet tenants beside a noisy one: 2 times as long); by arrival alone, everybody waits for
everybody, and goodput falls to a tenth once the cards are full.
"""

from __future__ import annotations

from typing import Final

from bedplate.core.fairness import expected_cost
from bedplate.core.rules import Rank
from bedplate.core.state import State
from bedplate.core.states import Turn

PATIENCE: Final = 64
"""How many times its own work a turn lets others pass."""


def least_work(state: State, turn: Turn) -> Rank:
    """Rank a turn by when it was asked first, later in proportion to its work; ties by number."""
    work_ns = turn.branch.group.costs.time_of(expected_cost(turn))
    return (turn.asked_ns + PATIENCE * work_ns, turn.serial)
