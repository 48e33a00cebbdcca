"""Waiting lines, and the order in which they go: by lane, then by tenant, then by rank.

A line is `list[dict[TenantId, list[Turn]]]`, one dict a lane, each list in the order of
`Turn.rank`. Each tenant has at most `LanePolicy.queue_max` turns waiting a lane, over all lines
(counted in `Tenant.waiting`).
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Iterator

from bedplate.core import shares
from bedplate.core.demand import note_gone, note_waiting
from bedplate.core.fairness import SCALE, expected_cost, fresh_tokens
from bedplate.core.group import Group
from bedplate.core.ids import TenantId
from bedplate.core.limits import BATCH, INTERACTIVE, SHARED
from bedplate.core.rules import Rank
from bedplate.core.state import State
from bedplate.core.states import Turn

Line = list[dict[TenantId, list[Turn]]]
Place = tuple[int, Rank]
"""Place of a turn in its lane: its tenant's rank, then its own."""


def push(line: Line, turn: Turn) -> None:
    """Add a turn at its place by rank. Cost: O(log turns of its tenant), and moving pointers."""
    tenants = line[turn.lane]
    tenant = turn.branch.session.tenant.id
    note_waiting(turn.branch.group, turn, fresh_tokens(turn))
    queue = tenants.get(tenant)
    if queue is None:
        tenants[tenant] = [turn]
    else:
        insort(queue, turn, key=_rank)
        if queue[0] is turn:
            shares.give_back(queue[1])


def _rank(turn: Turn) -> tuple[int, ...]:
    return turn.rank


def remove(line: Line, turn: Turn) -> None:
    """Take a turn out."""
    tenants = line[turn.lane]
    tenant = turn.branch.session.tenant.id
    note_gone(turn.branch.group, turn)
    queue = tenants[tenant]
    queue.remove(turn)
    if not queue:
        del tenants[tenant]


def empty(line: Line) -> bool:
    """Tell whether nothing waits."""
    return not (line[0] or line[1] or line[2])


def heads(state: State, group: Group, waiting: Line) -> Iterator[tuple[int, Place, Turn]]:
    """Yield each tenant's first turn with its lane and its place there, first things first.

    Cost: O(tenants) for a lane that is looked at, O(log tenants) a turn.
    """
    for lane in lanes(group):
        tenants = waiting[lane]
        if not tenants:
            continue
        floor = least(group, waiting, lane)
        heap = [
            (place(state, turns[0], floor), turns[0].serial, turns[0]) for turns in tenants.values()
        ]
        heapq.heapify(heap)
        while heap:
            where, _, turn = heapq.heappop(heap)
            yield lane, where, turn


def lanes(group: Group) -> list[int]:
    """Return the lanes in the order in which they go now: those that are owed a turn first."""
    shared, batch = _is_owed(group, SHARED), _is_owed(group, BATCH)
    if shared:
        return [SHARED, BATCH, INTERACTIVE] if batch else [SHARED, INTERACTIVE, BATCH]
    return [BATCH, INTERACTIVE, SHARED] if batch else [INTERACTIVE, SHARED, BATCH]


def _is_owed(group: Group, lane: int) -> bool:
    if group.owed[lane] < SCALE:  # no turn costs less than one token
        return False
    for queue in group.queues[lane].values():
        return group.owed[lane] >= SCALE * expected_cost(queue[0])
    return False


def least(group: Group, waiting: Line, lane: int) -> int:
    """Return the least virtual service of the tenants that wait in a lane."""
    tenants = waiting[lane]
    if not tenants:
        return group.floors[lane]
    served = group.virtual[lane]
    return min([served.get(tenant, 0) for tenant in tenants])


def place(state: State, turn: Turn, least: int) -> Place:
    """Return a turn's place in its lane."""
    return (state.rules.tenant_rank(state, turn, least), turn.rank)
