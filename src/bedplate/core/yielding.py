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
from bedplate.core.retention import makes_room
from bedplate.core.state import State
from bedplate.core.states import BREAKER_CLOSED, Slot, Turn

ENDING_TOKENS = 32
"""A turn that may give no more than so many tokens is left to its end."""
Loss = tuple[int, int, int]


def make_way(state: State, group: Group) -> None:
    """Ask for places for the turns that could not start in this step.

    Cost: O(1) while nothing may yield or nothing waits; else RELEASE_SCAN_MAX turns that wait, with
    as many that run looked at for each.
    """
    queues = group.queues
    if not (group.may_yield and (queues[INTERACTIVE] or queues[SHARED] or group.bound_cards)):
        return
    losses = _by_loss(group)
    for turn in islice(_waiting(group), len(group.yielding), RELEASE_SCAN_MAX):
        victim = _victim(state, turn, losses) if within_quota(state, turn) else None
        if victim is None:
            continue
        del group.may_yield[victim.id]
        group.yielding[victim.id] = victim
        state.emit(YieldTurn(victim.id, victim.attempt))
        losses = _by_loss(group)


def _waiting(group: Group) -> Iterator[Turn]:
    """Yield ready turns above the batch lane that their tenants' limits let run, in no promise."""
    for lane in (INTERACTIVE, SHARED):
        for queue in group.queues[lane].values():
            tenant = queue[0].branch.session.tenant
            limit = tenant.policy.running_max
            yield from islice(queue, max(0, limit - tenant.running) if limit else None)
    for card in group.bound_cards.values():
        yield from [turn for turn in card.bound.values() if turn.lane < BATCH]


def _by_loss(group: Group) -> list[Turn]:
    """Return who may make way, of those dispatched last, the least loss first."""
    found: list[tuple[Loss, Turn]] = []
    for turn in islice(reversed(group.may_yield.values()), RELEASE_SCAN_MAX):
        loss = None if turn.end_reason else _loss(turn)
        if loss is not None:
            found.append((loss, turn))
    found.sort(key=lambda item: item[0])
    return [turn for _, turn in found]


def _victim(state: State, turn: Turn, losses: list[Turn]) -> Turn | None:
    """Return the first of those whose place the turn could take."""
    home, bound = home_of(turn), is_bound(turn)
    for other in losses:
        if other.lane > turn.lane and _would_start(state, turn, other, home=home, bound=bound):
            return other
    return None


def _loss(turn: Turn) -> Loss | None:
    """Return what it costs to stop a running turn, None where it is not done."""
    if turn.limit_tokens - turn.out_tokens <= ENDING_TOKENS:
        return None
    if turn.fresh_tokens:
        return (1, -turn.dispatched_ns, turn.serial) if turn.lane == BATCH else None
    if turn.lane == BATCH:
        return (0, turn.prompt_tokens + turn.out_tokens, turn.serial)
    return (2, -turn.branch.session.serial, turn.serial)


def _would_start(state: State, turn: Turn, other: Turn, *, home: Slot | None, bound: bool) -> bool:
    """Tell whether the turn could run in the other's place."""
    slot = other.slot
    assert slot is not None
    card = slot.card
    if home is not None and home.card is not card:
        if bound:
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
    return makes_room(state, card, turn, blocks=blocks, keep=home)
