"""Running turns of lower lanes make way for those of higher ones that no card can start.

Who yields, with the least loss: a batch turn that decodes, the one with the least KV to move; then
a batch turn whose prompt is computed, the one that began last; then, for an interactive turn, a
shared turn that decodes, of the youngest session, which has the most time left. Nobody yields to
its own lane, nobody within its last tokens, and nobody whose lane was owed the turn; each at most
`YIELDS_MAX` times, so that all end.

    make_way ─► YieldTurn ─► TurnEnded(yielded) ─► KV held and stored ─► in line again
                                  └─ the other starts as soon as there is room ─┘

While a turn is asked or its KV is stored, it makes way for one turn: nobody else is asked for that.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from bedplate.core.actions import YieldTurn
from bedplate.core.card import opens_without, takes
from bedplate.core.group import Group
from bedplate.core.limits import BATCH, INTERACTIVE, RELEASE_SCAN_MAX, SHARED
from bedplate.core.placement import home_of, is_bound, within_quota
from bedplate.core.retention import victims_for
from bedplate.core.state import State
from bedplate.core.states import BREAKER_CLOSED, Turn

ENDING_TOKENS = 32
"""A turn that may give no more than so many tokens is left to its end."""
Loss = tuple[int, int, int]


def make_way(state: State, group: Group) -> None:
    """Ask for places for the turns that could not start in this step.

    Cost: O(1) while nothing may yield or nothing waits; else RELEASE_SCAN_MAX turns that wait, with
    as many that run looked at for each.
    """
    if not group.may_yield:
        return
    for turn in islice(_waiting(group), len(group.yielding), RELEASE_SCAN_MAX):
        victim = _victim(state, turn) if within_quota(state, turn) else None
        if victim is None:
            continue
        del group.may_yield[victim.id]
        group.yielding[victim.id] = victim
        state.emit(YieldTurn(victim.id, victim.attempt))


def _waiting(group: Group) -> Iterator[Turn]:
    """Yield ready turns above the batch lane that their tenants' limits let run, in no promise."""
    for lane in (INTERACTIVE, SHARED):
        for queue in group.queues[lane].values():
            tenant = queue[0].branch.session.tenant
            limit = tenant.policy.running_max
            yield from islice(queue, max(0, limit - tenant.running) if limit else None)
    for card in group.bound_cards.values():
        yield from (turn for turn in card.bound.values() if turn.lane < BATCH)


def _victim(state: State, turn: Turn) -> Turn | None:
    """Return who loses least of those whose place the turn could take, latest dispatched first."""
    best: Turn | None = None
    least: Loss | None = None
    for other in islice(reversed(turn.branch.group.may_yield.values()), RELEASE_SCAN_MAX):
        loss = _loss(other)
        if other.lane <= turn.lane or other.end_reason or loss is None:
            continue
        if (least is None or loss < least) and _would_start(state, turn, other):
            best, least = other, loss
    return best


def _loss(turn: Turn) -> Loss | None:
    """Return what it costs to stop a running turn, None where it is not done."""
    if turn.limit_tokens - turn.out_tokens <= ENDING_TOKENS:
        return None
    if turn.fresh_tokens:
        return (1, -turn.dispatched_ns, turn.serial) if turn.lane == BATCH else None
    if turn.lane == BATCH:
        return (0, turn.prompt_tokens + turn.out_tokens, turn.serial)
    return (2, -turn.branch.session.serial, turn.serial)


def _would_start(state: State, turn: Turn, other: Turn) -> bool:
    """Tell whether the turn could run on the other's card in its place."""
    slot = other.slot
    assert slot is not None
    card = slot.card
    home = home_of(turn)
    if home is not None and home.card is not card:
        if is_bound(turn):
            return False
        home = None
    if (
        card.draining
        or card.breaker != BREAKER_CLOSED
        or not takes(card, turn.prompt_tokens + turn.limit_tokens)
    ):
        return False
    if card.running > card.running_busy > 0:
        return False
    if not opens_without(card, other):
        return False
    blocks = turn.need_blocks - slot.blocks - (home.blocks if home is not None else 0)
    return victims_for(state, card, turn, blocks=blocks, need_slot=False, keep=home) is not None
