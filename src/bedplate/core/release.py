"""Which ready turn starts next: by lane, then by tenant, then by rank.

Lanes are strict, but each lower one gets a minimum share of the work (`LanePolicy.share_permille`):
what starts above it while it waits is noted as owed, and a turn whose cost is owed goes first. So
no lane starves, and none waits for another's turn when it has a card of its own.

A turn that does not fit, or that cards with room do not take beside the prompts they have, may be
passed by others, at most `PASSED_OVER_MAX` times; then its group waits until it fits, so neither
large contexts nor a lane that is owed a turn can starve. Turns whose KV is only on one busy card
wait at that card (`Card.bound`) instead of blocking their tenant's line; others may pass them there
as often, then that card alone waits. A turn within its tenant's reserve waits for none of these
(`shares`).
"""

from __future__ import annotations

import heapq

from bedplate.core import lane as line
from bedplate.core import shares
from bedplate.core.card import any_open, can_open
from bedplate.core.dispatch import start
from bedplate.core.fairness import SCALE, expected_cost
from bedplate.core.group import Group
from bedplate.core.ids import TurnId
from bedplate.core.lane import Place
from bedplate.core.limits import INTERACTIVE, PASSED_OVER_MAX, RELEASE_SCAN_MAX
from bedplate.core.placement import Plan, may_begin
from bedplate.core.ready import dequeue
from bedplate.core.state import State
from bedplate.core.states import Turn

Bound = list[tuple[int, Place, int, Turn]]
"""Heap of turns that are bound to cards: lane in order, place there, serial."""


def release(state: State, group: Group) -> None:
    """Start every turn that can start now, in order. Cost: O(candidates looked at), bounded."""
    budget = RELEASE_SCAN_MAX
    tried: dict[TurnId, Turn] = {}
    while budget > 0 and _waits(group) and any_open(group):
        picked, looked = _pick(state, group, budget, tried)
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


def _pick(
    state: State, group: Group, budget: int, tried: dict[TurnId, Turn]
) -> tuple[tuple[Turn, Plan] | None, int]:
    """Return the next turn that can start with its way, and how many of the lines were looked at.

    `tried` are bound turns that found no room in this step: there is not more of it later.
    """
    looked = 0
    blocked = False
    passed: list[Turn] = []
    lanes = line.lanes(group)
    bound = _bound(state, group, lanes, tried) if group.bound_cards else []
    for lane, place, turn in line.heads(state, group, group.queues):
        before = (lanes.index(lane), place)
        found = _first_bound(state, bound, tried, before) if bound and not blocked else None
        if found is not None:
            return found, looked + 1
        if looked >= budget:
            return None, looked
        looked += 1
        if _at_limit(turn) or (blocked and not shares.within(turn)):
            continue
        way = state.rules.plan(state, turn)
        if way is not None:
            for other in passed:
                other.passed_over += 1
            _pass_bound(tried, way)
            return (turn, way), looked
        if turn.why in ("no_room", "busy"):
            shares.keep_card(turn)
            if turn.passed_over >= PASSED_OVER_MAX:
                if not group.reserve_blocks:
                    return None, looked
                blocked = True
            passed.append(turn)
    if blocked:
        bound = [item for item in bound if shares.within(item[3])]
    return _first_bound(state, bound, tried, None), looked + 1


def _bound(state: State, group: Group, lanes: list[int], tried: dict[TurnId, Turn]) -> Bound:
    """Return the turns that are bound to cards which can start one, in order, but those tried."""
    least = [line.least(group, group.queues, lane) for lane in range(3)]
    found: Bound = []
    for card in group.bound_cards.values():
        if not can_open(card):
            continue
        for turn in card.bound.values():
            if turn.id not in tried and not _at_limit(turn) and may_begin(card, turn):
                place = line.place(state, turn, least[turn.lane])
                found.append((lanes.index(turn.lane), place, turn.serial, turn))
    heapq.heapify(found)
    return found


def _first_bound(
    state: State, bound: Bound, tried: dict[TurnId, Turn], before: tuple[int, Place] | None
) -> tuple[Turn, Plan] | None:
    """Return the first bound turn that can start, of those before a place; the others are tried.

    Cost: O(RELEASE_SCAN_MAX) in a step.
    """
    while bound and len(tried) < RELEASE_SCAN_MAX:
        if before is not None and bound[0][:2] >= before:
            return None
        turn = heapq.heappop(bound)[3]
        way = state.rules.plan(state, turn)
        if way is not None:
            _pass_bound(tried, way)
            return turn, way
        shares.keep_card(turn)
        tried[turn.id] = turn
    return None


def _pass_bound(tried: dict[TurnId, Turn], way: Plan) -> None:
    """Note that a turn starts where others that are bound to the card found no room."""
    for other in tried.values():
        if other.bound_to is way.card:
            other.passed_over += 1


def _at_limit(turn: Turn) -> bool:
    """Tell whether the turn's tenant runs as many turns as it may, and say so in `turn.why`."""
    tenant = turn.branch.session.tenant
    limit = tenant.policy.running_max
    if limit and tenant.running >= limit:
        turn.why = "tenant_running_max"
        return True
    return False
