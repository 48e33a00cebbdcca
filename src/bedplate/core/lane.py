"""Waiting lines: per lane, then per tenant in rotation, then by arrival.

A line is `list[dict[TenantId, deque[Turn]]]`, one dict a lane. The dict's order is the rotation:
who was served moves to the end. Each tenant has at most `LanePolicy.queue_max` turns waiting a
lane, over all lines (counted in `Tenant.waiting`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from bedplate.core.ids import TenantId
from bedplate.core.states import Turn

Line = list[dict[TenantId, deque[Turn]]]


def push(line: Line, turn: Turn) -> None:
    """Add a turn at its place by arrival, last unless it comes back from a lost card."""
    tenants = line[turn.lane]
    tenant = turn.branch.session.tenant.id
    queue = tenants.get(tenant)
    if queue is None:
        queue = tenants[tenant] = deque()
    if not queue or queue[-1].serial < turn.serial:
        queue.append(turn)
        return
    for index, other in enumerate(queue):
        if other.serial > turn.serial:
            queue.insert(index, turn)
            return


def remove(line: Line, turn: Turn, *, served: bool) -> None:
    """Take a turn out; when it was `served`, its tenant moves to the end of the rotation."""
    tenants = line[turn.lane]
    tenant = turn.branch.session.tenant.id
    queue = tenants[tenant]
    if queue[0] is turn:
        queue.popleft()
    else:
        queue.remove(turn)
    if not queue:
        del tenants[tenant]
    elif served:
        tenants[tenant] = tenants.pop(tenant)


def heads(line: Line) -> Iterator[Turn]:
    """Yield each tenant's first turn, lanes by rank and tenants in rotation."""
    for tenants in line:
        for queue in tenants.values():
            yield queue[0]


def first(line: Line) -> Turn | None:
    """Return the turn whose lane and tenant come first, None when nothing waits."""
    for tenants in line:
        for queue in tenants.values():
            return queue[0]
    return None


def empty(line: Line) -> bool:
    """Tell whether nothing waits."""
    return not (line[0] or line[1] or line[2])
