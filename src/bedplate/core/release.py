"""Which ready turn starts next: by lane, then by tenant, then by rank.

Lanes are strict, but each lower one gets a minimum share of the work (`LanePolicy.share_permille`):
what starts above it while it waits is noted as owed, and a turn whose cost is owed goes first. So
no lane starves, and none waits for another's turn when it has a card of its own.

A turn that does not fit may be passed by others, at most `PASSED_OVER_MAX` times; then its group
waits until it fits, so large contexts cannot starve. Turns whose KV is only on one busy card wait
at that card (`Card.bound`) instead of blocking their tenant's line. A turn within its tenant's
reserve waits for none of these (`shares`).
"""

from __future__ import annotations

from bedplate.core import lane as line
from bedplate.core import shares
from bedplate.core.card import any_open, can_open
from bedplate.core.dispatch import start
from bedplate.core.fairness import SCALE, expected_cost
from bedplate.core.group import Group
from bedplate.core.lane import Place
from bedplate.core.limits import INTERACTIVE, PASSED_OVER_MAX, RELEASE_SCAN_MAX
from bedplate.core.placement import Plan, may_begin
from bedplate.core.ready import dequeue
from bedplate.core.state import State
from bedplate.core.states import Turn


def release(state: State, group: Group) -> None:
    """Start every turn that can start now, in order. Cost: O(candidates looked at), bounded."""
    budget = RELEASE_SCAN_MAX
    while budget > 0 and _waits(group) and any_open(group):
        picked, looked = _pick(state, group, budget)
        budget -= looked
        if picked is None:
            return
        turn, way = picked
        turn.owed = _goes_ahead(group, turn)
        _note_work(state, group, turn)
        dequeue(turn)
        start(state, turn, way)


def _waits(group: Group) -> bool:
    return bool(group.bound_cards) or not line.empty(group.queues)


def _goes_ahead(group: Group, turn: Turn) -> bool:
    """Tell whether the turn starts before those of a lane above it because its own is owed one."""
    if turn.lane == INTERACTIVE:
        return False
    order = line.lanes(group)
    at = order.index(turn.lane)
    return any(group.queues[lane] for lane in range(turn.lane) if order.index(lane) > at)


def _note_work(state: State, group: Group, turn: Turn) -> None:
    """Note that a turn starts: what is owed to the lanes below it, and how far its own lane is."""
    cost = expected_cost(turn)
    lane = turn.lane
    group.owed[lane] = max(0, group.owed[lane] - SCALE * cost)
    for lower in range(lane + 1, 3):
        if group.queues[lower]:
            group.owed[lower] += cost * state.policy.lanes[lower].share_permille
        else:
            group.owed[lower] = 0
    least = line.least(group, group.queues, lane)
    group.floors[lane] = max(group.floors[lane], least)


def _pick(state: State, group: Group, budget: int) -> tuple[tuple[Turn, Plan] | None, int]:
    looked = 0
    blocked = False
    passed: list[Turn] = []
    bound = _first_bound(state, group) if group.bound_cards else None
    lanes = line.lanes(group)
    for lane, place, turn in line.heads(state, group, group.queues):
        if bound is not None and not blocked and _before(state, group, bound, lanes, (lane, place)):
            way = state.rules.plan(state, bound)
            looked += 1
            if way is not None:
                return (bound, way), looked
            shares.keep_card(bound)
            bound = None
        if looked >= budget:
            return None, looked
        looked += 1
        if _at_limit(turn) or (blocked and not shares.within(turn)):
            continue
        way = state.rules.plan(state, turn)
        if way is not None:
            for other in passed:
                other.passed_over += 1
            return (turn, way), looked
        if turn.why == "no_room":
            shares.keep_card(turn)
            if turn.passed_over >= PASSED_OVER_MAX:
                if not group.reserve_blocks:
                    return None, looked
                blocked = True
            passed.append(turn)
    if bound is not None and (not blocked or shares.within(bound)):
        way = state.rules.plan(state, bound)
        if way is not None:
            return (bound, way), looked + 1
    return None, looked + 1


def _before(
    state: State, group: Group, bound: Turn, lanes: list[int], other: tuple[int, Place]
) -> bool:
    """Tell whether a bound turn comes before a waiting one, given by its lane and its place."""
    lane, place = other
    if bound.lane != lane:
        return lanes.index(bound.lane) < lanes.index(lane)
    return line.place(state, bound, line.least(group, group.queues, lane)) < place


def _at_limit(turn: Turn) -> bool:
    """Tell whether the turn's tenant runs as many turns as it may, and say so in `turn.why`."""
    tenant = turn.branch.session.tenant
    limit = tenant.policy.running_max
    if limit and tenant.running >= limit:
        turn.why = "tenant_running_max"
        return True
    return False


def _first_bound(state: State, group: Group) -> Turn | None:
    """Return the first turn in order that is bound to a card which can start one."""
    lanes = line.lanes(group)
    best: Turn | None = None
    first: tuple[int, Place] | None = None
    for card in group.bound_cards.values():
        if not can_open(card):
            continue
        for turn in card.bound.values():
            if _at_limit(turn) or not may_begin(card, turn):
                continue
            least = line.least(group, group.queues, turn.lane)
            found = (lanes.index(turn.lane), line.place(state, turn, least))
            if first is None or found < first:
                best, first = turn, found
    return best
