"""The card ledger: who occupies which blocks, and which cards can start a turn.

Every change of a slot's blocks goes through `book`, every promise through `claim` and `unclaim`, so
that INV-01 (used − dropping + claimed ≤ total) is kept in one file:

    |<-------------------------- total ---------------------------->|
    |<--------------- used ---------------->|
    |   running and held  |    dropping     |        free           |
                          |<---- claimed by placed turns ---->|
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Final, TypeVar

from bedplate.core import shares
from bedplate.core.group import Group
from bedplate.core.ids import TurnId
from bedplate.core.lease import charge
from bedplate.core.limits import BATCH
from bedplate.core.state import State
from bedplate.core.states import BREAKER_HALF, BREAKER_OPEN, DROPPING, FREE, HELD, Card, Slot, Turn
from bedplate.core.units import SECOND_NS

Found = TypeVar("Found")
PROMPT_NS = SECOND_NS // 2
"""Work in prompts with which a card takes no more: enough never to idle between short ones."""
BATCH_PART: Final = 8
"""The part of the budget that batch prompts may fill beside others."""
Load = tuple[int, int, int, int]
"""Place of a card among those that can start a turn."""


def book(state: State, slot: Slot, blocks: int) -> None:
    """Set what a slot occupies, and charge its branch for the time it held the old amount."""
    assert blocks >= 0
    card = slot.card
    if slot.branch is not None:
        charge(slot.branch, state.now_ns)
    if slot.state == DROPPING:
        card.dropping_blocks += blocks - slot.blocks
    card.used_blocks += blocks - slot.blocks
    if slot.turn is not None:
        card.busy_blocks += blocks - slot.blocks
    if slot.branch is not None:
        busy = slot.turn is not None
        shares.hold(card, slot.branch.share, blocks - slot.blocks, busy=busy)
    slot.blocks = blocks
    assert 0 <= card.used_blocks <= card.total_blocks, card.id
    assert 0 <= card.dropping_blocks <= card.used_blocks, card.id
    touch(state, card)


def claim(turn: Turn, slot: Slot, blocks: int) -> None:
    """Promise blocks that are free or will be when the drops under way are acknowledged."""
    card = slot.card
    assert turn.claim_blocks == 0
    assert spare_blocks(card) >= blocks, card.id
    turn.claim_blocks = blocks
    card.claimed_blocks += blocks
    shares.hold(card, turn.branch.share, blocks, busy=True)


def unclaim(turn: Turn, card: Card) -> None:
    """Take a promise back, to use it or because the turn goes away."""
    card.claimed_blocks -= turn.claim_blocks
    shares.hold(card, turn.branch.share, -turn.claim_blocks, busy=True)
    turn.claim_blocks = 0
    assert card.claimed_blocks >= 0, card.id


def spare_blocks(card: Card) -> int:
    """Return blocks that nobody holds or was promised, counting drops under way as free."""
    return card.total_blocks - card.used_blocks + card.dropping_blocks - card.claimed_blocks


def idle_blocks(card: Card) -> int:
    """Return the blocks of slots without a turn: more than these cannot be given up."""
    return card.used_blocks - card.busy_blocks


def could_hold(card: Card, blocks: int) -> bool:
    """Tell whether the card had so many blocks if nothing but its turns kept any."""
    return card.total_blocks - card.busy_blocks - card.claimed_blocks >= blocks


def empty_slot(state: State, slot: Slot) -> None:
    """Make a slot FREE: its blocks are back, no branch points at it. A turn placed on it stays."""
    book(state, slot, 0)
    unshelve(slot)
    if slot.branch is not None and slot.branch.slot is slot:
        slot.branch.slot = None
    slot.branch = None
    slot.entry = None
    slot.tokens = slot.shared_tokens = 0
    slot.loaded = False
    slot.dirty = False
    slot.drop_tries = 0
    slot.state = FREE
    if slot.turn is None:
        heapq.heappush(slot.card.free, slot.id)


def occupy(slot: Slot, turn: Turn) -> None:
    """Give a slot to a placed turn."""
    assert slot.turn is None
    slot.turn = turn
    slot.card.busy_blocks += slot.blocks
    if slot.branch is not None:
        shares.run(slot.card, slot.branch.share, slot.blocks)
    unshelve(slot)
    if slot.card.breaker == BREAKER_HALF and not slot.card.probe:
        slot.card.probe = turn.id


def leave(slot: Slot) -> None:
    """Part a slot from its turn; what it holds stays booked."""
    assert slot.turn is not None
    if slot.card.probe == slot.turn.id:
        slot.card.probe = TurnId("")
    slot.turn = None
    slot.card.busy_blocks -= slot.blocks
    assert slot.card.busy_blocks >= 0
    if slot.branch is not None:
        shares.run(slot.card, slot.branch.share, -slot.blocks)
    if slot.state == FREE:
        heapq.heappush(slot.card.free, slot.id)
    elif slot.state == HELD:
        shelve(slot)


def shelve(slot: Slot) -> None:
    """List a slot as the latest that keeps KV without a turn, of its card and of its tenant."""
    unshelve(slot)
    assert slot.branch is not None
    slot.card.idle[slot.id] = slot
    slot.branch.session.tenant.shelf[(slot.card.id, slot.id)] = slot


def unshelve(slot: Slot) -> None:
    """Take a slot out of those lists: it gets a turn, or gives up what it keeps."""
    slot.card.idle.pop(slot.id, None)
    if slot.branch is not None:
        slot.branch.session.tenant.shelf.pop((slot.card.id, slot.id), None)


def disown(slot: Slot) -> None:
    """Part a slot from the branch whose KV it gives up; its blocks are no longer its tenant's."""
    unshelve(slot)
    branch = slot.branch
    if branch is not None:
        shares.hold(slot.card, branch.share, -slot.blocks, busy=False)
        if branch.slot is slot:
            branch.slot = None
        slot.branch = None


def can_open(card: Card) -> bool:
    """Tell whether the card may start another turn, room aside.

    One that has enough to compute is closed: another prompt would only wait there, out of reach of
    lanes and order. While one of its streams has no prompt it never has enough, however long the
    others are.
    """
    if not card.up or card.draining or card.running >= card.running_max:
        return False
    if card.breaker == BREAKER_OPEN or (card.breaker == BREAKER_HALF and card.probe):
        return False
    return _has_room_for_prompts(card, card.prompts, card.prompt_tokens)


def opens_without(card: Card, turn: Turn) -> bool:
    """Tell whether the card could take a prompt if a turn on it were gone."""
    return _has_room_for_prompts(
        card, card.prompts - (turn.fresh_tokens > 0), card.prompt_tokens - turn.fresh_tokens
    )


def _has_room_for_prompts(card: Card, prompts: int, tokens: int) -> bool:
    return prompts < card.prompt_streams or card.prompt_streams == 0 or tokens < prompt_budget(card)


def open_to(card: Card, turn: Turn) -> bool:
    """Tell whether the card takes a turn of this tenant and lane: one of a slice takes its own."""
    part = card.slice
    if part is None:
        return True
    return part.tenant == turn.branch.session.tenant.id and part.lane in (-1, turn.lane)


def prompt_budget(card: Card) -> int:
    """Return with how many prompt tokens to compute the card takes no other prompt.

    That is PROMPT_NS of work at the pace that its group was seen to have. The length of the other
    does not count: if it did, short ones would pass a long one for as long as they come.
    """
    return card.prompt_streams * card.group.costs.tokens_in(PROMPT_NS)


def takes_prompt(card: Card, turn: Turn, tokens: int) -> bool:
    """Tell whether a turn that computes so many tokens may go to an open card beside the others.

    A card whose decoding suffers from company runs fewer while turns wait that cannot all start:
    those it runs then end sooner. One prompt a stream always may, however long. Batch prompts fill
    a small part of the budget, so that a turn of a lane above finds little before it.
    """
    if card.running >= card.running_busy > 0 and not _at_ease(card.group):
        return False
    if card.prompts < card.prompt_streams or card.prompt_streams == 0 or turn.lane != BATCH:
        return True
    return card.prompt_tokens + tokens <= prompt_budget(card) // BATCH_PART


def _at_ease(group: Group) -> bool:
    """Tell whether all turns that wait could start at once."""
    return sum(group.waiting_turns) <= group.running_max - group.running


def commit(state: State, turn: Turn, card: Card, tokens: int) -> None:
    """Set how much of a turn's prompt its card has yet to compute; 0 once it is done."""
    assert tokens >= 0
    card.prompts += (tokens > 0) - (turn.fresh_tokens > 0)
    card.prompt_tokens += tokens - turn.fresh_tokens
    turn.fresh_tokens = tokens
    assert card.prompts >= 0
    assert card.prompt_tokens >= card.prompts
    touch(state, card)


def touch(state: State, card: Card) -> None:
    """Note that a card's load or health changed: its place among the open cards is out of date."""
    state.touched[card.id] = card
    group = card.group
    state.stir(group)
    group.unranked[card.id] = card


def rank(card: Card) -> Load:
    """Return the order of placement: least to compute, fewest turns, fewest blocks, then index."""
    return (card.prompt_tokens, card.running, card.used_blocks, card.index)


def any_open(group: Group) -> bool:
    """Tell whether some card of the group can start a turn, room aside.

    Cost: amortised O(log cards).
    """
    heap = _ranked(group)
    while heap:
        card = group.cards[heap[0][3]]
        if can_open(card) and rank(card) == heap[0]:
            return True
        heapq.heappop(heap)
    return False


def _ranked(group: Group) -> list[Load]:
    """Return the heap of open cards with every change since the last look pushed."""
    if group.unranked:
        if len(group.open_heap) > 64 + 8 * len(group.cards):
            group.open_heap = [rank(card) for card in group.cards if can_open(card)]
            heapq.heapify(group.open_heap)
        else:
            for card in group.unranked.values():
                if can_open(card):
                    heapq.heappush(group.open_heap, rank(card))
        group.unranked.clear()
    return group.open_heap


def takes(card: Card, tokens: int) -> bool:
    """Tell whether the card can hold a session of so many tokens, were it empty."""
    return tokens <= min(card.context_tokens, card.total_blocks * card.group.block_tokens)


def first_by_load(
    group: Group,
    *,
    min_tokens: int,
    blocks: int,
    looks: int,
    tries: int,
    attempt: Callable[[Card], Found | None],
) -> Found | None:
    """Return what `attempt` makes of the first card that it can use, least loaded first.

    Up to `looks` cards that can start a turn are looked at, and up to `tries` tried: those in no
    slice that take sessions of `min_tokens` and whose turns leave `blocks`. `attempt` changes
    nothing. Stale heap entries met on the way are dropped, live ones are kept.
    Cost: O(looks log cards), and `tries` attempts.
    """
    heap = _ranked(group)
    found: Found | None = None
    kept: list[Load] = []
    while heap and tries > 0 and len(kept) < looks and found is None:
        item = heapq.heappop(heap)
        card = group.cards[item[3]]
        if can_open(card) and rank(card) == item and item not in kept:
            kept.append(item)
            if card.slice is None and takes(card, min_tokens) and could_hold(card, blocks):
                tries -= 1
                found = attempt(card)
    for item in kept:
        heapq.heappush(heap, item)
    return found


def free_slot(card: Card) -> Slot | None:
    """Return the first FREE slot that no placed turn waits for. Cost: amortised O(log slots)."""
    while card.free:
        slot = card.slots[card.free[0]]
        if slot.state == FREE and slot.turn is None:
            return slot
        heapq.heappop(card.free)
    return None


def held_by(slot: Slot) -> bool:
    """Tell whether a slot keeps a branch's KV and nothing happens to it now."""
    return slot.state == HELD and slot.turn is None
