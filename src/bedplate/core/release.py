"""Which ready turn starts next: lane order, tenants in rotation, then arrival.

A turn that does not fit may be passed by others, at most `PASSED_OVER_MAX` times; then its group
waits until it fits, so large contexts cannot starve. Turns whose KV is only on one busy card wait
at that card (`Card.bound`) instead of blocking their tenant's line.
"""

from __future__ import annotations

from bedplate.core import lane as line
from bedplate.core.card import any_open, can_open
from bedplate.core.dispatch import start
from bedplate.core.limits import PASSED_OVER_MAX, RELEASE_SCAN_MAX
from bedplate.core.placement import Plan, plan
from bedplate.core.ready import dequeue
from bedplate.core.state import State
from bedplate.core.states import Group, Turn


def release(state: State, group: Group) -> None:
    """Start every turn that can start now, in order. Cost: O(candidates looked at), bounded."""
    budget = RELEASE_SCAN_MAX
    while budget > 0 and _waits(group) and any_open(group):
        picked, looked = _pick(state, group, budget)
        budget -= looked
        if picked is None:
            return
        turn, way = picked
        dequeue(turn, served=True)
        start(state, turn, way)


def _waits(group: Group) -> bool:
    return bool(group.bound_cards) or not line.empty(group.queues)


def _pick(state: State, group: Group, budget: int) -> tuple[tuple[Turn, Plan] | None, int]:
    looked = 0
    passed: list[Turn] = []
    bound = _first_bound(group)
    for turn in line.heads(group.queues):
        if bound is not None and _before(bound, turn):
            way = plan(state, bound)
            looked += 1
            if way is not None:
                return (bound, way), looked
            bound = None
        if looked >= budget:
            return None, looked
        looked += 1
        tenant = turn.branch.session.tenant
        if tenant.policy.running_max and tenant.running >= tenant.policy.running_max:
            turn.why = "tenant_running_max"
            continue
        way = plan(state, turn)
        if way is not None:
            for other in passed:
                other.passed_over += 1
            return (turn, way), looked
        if turn.why == "no_room":
            if turn.passed_over >= PASSED_OVER_MAX:
                return None, looked
            passed.append(turn)
    if bound is not None:
        way = plan(state, bound)
        if way is not None:
            return (bound, way), looked + 1
    return None, looked + 1


def _before(one: Turn, other: Turn) -> bool:
    return _order(one) < _order(other)


def _order(turn: Turn) -> tuple[int, int, int]:
    """Lane, then the tenant that was served longest ago, then arrival."""
    return (turn.lane, turn.branch.session.tenant.served, turn.serial)


def _first_bound(group: Group) -> Turn | None:
    """Return the first turn in order that is bound to a card which can start one."""
    best: Turn | None = None
    for card in group.bound_cards.values():
        if not can_open(card):
            continue
        for turn in card.bound.values():
            tenant = turn.branch.session.tenant
            if tenant.policy.running_max and tenant.running >= tenant.policy.running_max:
                turn.why = "tenant_running_max"
            elif best is None or _before(turn, best):
                best = turn
    return best
