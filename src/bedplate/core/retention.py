"""What a card and the pool keep, and what goes when room is needed: least valuable first.

The order is that of `Rules.worth` and `Rules.entry_worth` (`eviction`). A tenant over its pool
limit makes room from its own entries only.
"""

from __future__ import annotations

from itertools import islice
from typing import Final

from bedplate.core import pool, shares
from bedplate.core.actions import DropKv, StoreKv
from bedplate.core.card import (
    book,
    disown,
    empty_slot,
    held_by,
    idle_blocks,
    shelve,
    spare_blocks,
    touch,
)
from bedplate.core.ids import TenantId
from bedplate.core.lease import charge
from bedplate.core.limits import RELEASE_SCAN_MAX
from bedplate.core.state import State
from bedplate.core.states import DROPPING, HELD, STORING, Card, Entry, Slot, Tenant, Turn

IDLE_SCAN_MAX: Final = 16
"""Idle slots of a card that are compared when one has to go, the least recently used of all."""

NOW: Final[str] = "now"
LATER: Final[str] = "later"
NEVER: Final[str] = "never"


def victims_for(
    state: State, card: Card, turn: Turn, *, blocks: int, need_slot: bool, keep: Slot | None
) -> list[Slot] | None:
    """Choose idle slots to drop so that `blocks` of `turn` fit (and a slot is free).

    None means that no choice would do.

    Changes nothing. Cost: O(IDLE_SCAN_MAX), more only when that many do not make room.
    """
    missing = blocks - spare_blocks(card)
    if missing <= 0 and not need_slot:
        return []
    if missing > idle_blocks(card):
        return None
    idle = _candidates(state, card, turn, missing, keep)
    if not (card.common and card.group.reserve_blocks):
        worth = state.rules.worth
        idle.sort(key=lambda slot: worth(state, slot))
        return _first(idle, missing, need_slot=need_slot)
    order, firm = shares.by_excess(state, idle, turn)
    victims = _first(order, missing, need_slot=need_slot)
    if victims is not None or not firm:
        return victims
    short = missing - sum(slot.blocks for slot in order)
    if not shares.may_go_below(turn, card, idle=idle, blocks=blocks, short=short):
        return None
    return _first(order + firm, missing, need_slot=need_slot)


def makes_room(state: State, card: Card, turn: Turn, *, blocks: int, keep: Slot | None) -> bool:
    """Tell whether `victims_for` finds room for `blocks` of a turn, whatever it would choose."""
    missing = blocks - spare_blocks(card)
    if missing <= 0 or missing > idle_blocks(card):
        return missing <= 0
    if card.common and card.group.reserve_blocks:
        return victims_for(state, card, turn, blocks=blocks, need_slot=False, keep=keep) is not None
    return sum(slot.blocks for slot in _candidates(state, card, turn, missing, keep)) >= missing


def _first(order: list[Slot], missing: int, *, need_slot: bool) -> list[Slot] | None:
    """Choose of idle slots in the order in which they go; None when all are too few."""
    chosen = cover([slot.blocks for slot in order], missing)
    if chosen is None:
        return None
    if not chosen and need_slot:
        chosen = [0] if order else None
    return [order[index] for index in chosen] if chosen is not None else None


def cover(blocks: list[int], missing: int) -> list[int] | None:
    """Return indexes of items that free `missing` blocks together, None if all are too few.

    Items come least valuable first. They are taken in this order until there is room; then those
    that were not needed after all are spared, the most valuable first. The choice costs at most as
    much as the best there is and its last item together. Cost: O(items).
    """
    chosen: list[int] = []
    for index, size in enumerate(blocks):
        if missing <= 0:
            break
        chosen.append(index)
        missing -= size
    if missing > 0:
        return None
    for index in chosen[::-1]:
        if missing + blocks[index] <= 0:
            missing += blocks[index]
            chosen.remove(index)
    return chosen


def _candidates(
    state: State, card: Card, turn: Turn, missing: int, keep: Slot | None
) -> list[Slot]:
    """Return idle slots, least recently used first: a bounded number, or as many as it takes.

    All of them where tenants have reserves.
    """
    whole = card.common and card.group.reserve_blocks > 0
    found: list[Slot] = []
    for slot in card.idle.values():
        if slot is keep or not held_by(slot) or _bound(slot, turn) or _to_store(state, slot):
            continue
        found.append(slot)
        missing -= slot.blocks
        if len(found) >= IDLE_SCAN_MAX and missing <= 0 and not whole:
            break
    return found


def _to_store(state: State, slot: Slot) -> bool:
    """Tell whether the slot became idle in this step: it is stored first, which is soon done."""
    return writes_through(state, slot) and slot in state.loose


def _bound(slot: Slot, turn: Turn) -> bool:
    """Tell whether a turn that comes before `turn` waits for exactly this slot.

    Among turns that wait for their own slots the first can always make room, so none block another.
    """
    branch = slot.branch
    if branch is None or not branch.turns:
        return False
    turns = branch.turns
    if turns[0].bound_to is not slot.card:
        return False
    if shares.within(turn) and not shares.within(turns[0]):
        return False
    if shares.shut_out(slot.card, turns[0]):
        return False  # it cannot run there; others would wait for it in vain
    return (turns[0].lane, turns[0].serial) < (turn.lane, turn.serial)


def keeps(state: State, slot: Slot) -> bool:
    """Keep what an ended turn left on its card: it goes when the room is needed."""
    return True


def loads(state: State, entry: Entry, saved_tokens: int) -> bool:
    """Tell whether to load a copy is better than to compute what it saves, as far as is known."""
    return entry.group.costs.load_pays(entry.tokens, saved_tokens, state.now_ns)


def stores(state: State, slot: Slot) -> bool:
    """Tell whether a copy in the pool is worth the link's time, in which others wait."""
    return slot.card.group.costs.store_pays(slot.tokens, state.now_ns)


def hold(state: State, slot: Slot, blocks: int) -> None:
    """Leave a slot idle with KV in `blocks` blocks."""
    assert slot.branch is not None
    assert slot.turn is None
    slot.state = HELD
    slot.used_ns = state.now_ns
    shelve(slot)
    book(state, slot, blocks)


def drop_slot(state: State, slot: Slot) -> None:
    """Give up what an idle slot holds; its blocks are free once the card acknowledges."""
    assert slot.turn is None
    assert slot.state not in (STORING, DROPPING)
    if slot.branch is not None:
        charge(slot.branch, state.now_ns)
    disown(slot)
    slot.dirty = False
    slot.tokens = slot.shared_tokens = 0
    slot.loaded = False
    if slot.card.kv != "full":
        empty_slot(state, slot)
    else:
        slot.state = DROPPING
        slot.drop_tries = 1
        slot.card.dropping_blocks += slot.blocks
        state.emit(DropKv(slot.card.id, slot.id))
    touch(state, slot.card)


def writes_through(state: State, slot: Slot) -> bool:
    """Tell whether the slot holds what the pool should have."""
    return slot.dirty and slot.card.kv == "full" and state.policy.pool_bytes_max > 0


def store_slot(state: State, slot: Slot) -> str:
    """Begin the write-through of an idle dirty slot.

    Returns NOW when it began; LATER when pool bytes must be deleted first (the slot is tried again
    when they are); NEVER when pool or quota have no room for it.
    """
    branch = slot.branch
    assert branch is not None
    assert slot.state == HELD
    if not state.rules.stores(state, slot):
        state.count("stores_spared")
        return NEVER
    group = slot.card.group
    size = slot.tokens * group.bytes_per_token
    tenant = branch.session.tenant
    when = make_pool_room(state, tenant, size)
    if when == LATER:
        state.pending_stores[(slot.card.id, slot.id)] = slot
    elif when == NEVER:
        state.count("stores_skipped")
    if when != NOW:
        return when
    entry = pool.new_entry(state, branch, slot.tokens, size)
    slot.entry = entry
    slot.state = STORING
    state.count("stores")
    state.emit(StoreKv(slot.card.id, slot.id, tenant.id, branch.session.id, branch.id, entry.id))
    return NOW


def retry_stores(state: State) -> None:
    """Try again the stores that waited for bytes of the pool. Cost: O(waiting)."""
    waiting = state.pending_stores
    state.pending_stores = {}
    for slot in waiting.values():
        if held_by(slot) and slot.dirty and slot.branch is not None and not slot.branch.turns:
            store_slot(state, slot)


def make_pool_room(state: State, tenant: Tenant, size: int) -> str:
    """Make room for a new entry; returns as `store_slot`. Cost: O(RELEASE_SCAN_MAX)."""
    cap = state.policy.pool_bytes_max
    quota = tenant.policy.pool_bytes_max
    if size > cap or (quota and size > quota):
        return NEVER
    if quota:
        over = tenant.pool_bytes - tenant.pool_dropping + size - quota
        if not _evict(state, over, tenant, own=True):
            return NEVER
    if not _evict(state, state.pool_bytes - state.pool_dropping + size - cap, tenant, own=False):
        return NEVER
    tight = state.pool_bytes + size > cap or (quota and tenant.pool_bytes + size > quota)
    return LATER if tight else NOW


def _evict(state: State, excess: int, tenant: Tenant, *, own: bool) -> bool:
    """Send idle entries of `excess` bytes on their way out for a tenant, or only its own.

    All that is needed goes, or nothing; no other tenant falls below its reserve in the pool. Cost:
    O(RELEASE_SCAN_MAX), the least recently stored of each lane are compared.
    """
    if excess <= 0:
        return True
    listed = tenant.lru if own else state.lru
    found: list[Entry] = []
    for lane in (2, 1, 0):
        for entry in islice(listed[lane].values(), RELEASE_SCAN_MAX):
            wanted = entry.refs or (entry.branch is not None and entry.branch.turns)
            if not wanted:
                found.append(entry)
    found.sort(key=lambda entry: state.rules.entry_worth(state, entry))
    chosen: list[Entry] = []
    left: dict[TenantId, int] = {}
    for entry in found:
        if excess <= 0:
            break
        owner = entry.tenant
        above = left.get(owner.id, owner.pool_bytes - owner.pool_dropping)
        above -= owner.policy.pool_reserve_bytes + entry.size_bytes
        if owner is not tenant and owner.policy.pool_reserve_bytes and above < 0:
            continue
        left[owner.id] = above + owner.policy.pool_reserve_bytes
        chosen.append(entry)
        excess -= entry.size_bytes
    if excess > 0:
        return False
    for entry in chosen:
        state.count("pool_evictions")
        pool.drop(state, entry)
    return True
