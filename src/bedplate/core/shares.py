"""What each tenant holds of a model's cards, and what is kept there for it.

A `Share` counts one tenant's blocks on the *common* cards of a group: those that are up, not
draining, and in no slice. A reserve is kept in two ways:

- Running turns cannot be taken back, so they leave room for it: for all tenants together
  Σ max(running, protected) ≤ blocks of the common cards, where protected is the reserve, less what
  its tenant lends while none of its turns waits. A turn within its tenant's reserve always may run.
- Idle KV of others makes room at any time, KV within a reserve does not (`retention`).

So a reserve that was lent is there again by the end of the running turns at the latest (INV-13).
Where KV lies scattered, a turn within a reserve may find no card with room, however little runs in
all. It then keeps one card for itself: no turn beyond a reserve starts there before it. Only the
first of a tenant's line keeps one, as no other is looked at.

Victims come from tenants above their reserve, the most above first (FairInference, 2026).
"""

from __future__ import annotations

import heapq

from bedplate.core.group import Group
from bedplate.core.ids import TenantId
from bedplate.core.limits import PASSED_OVER_MAX, TenantPolicy
from bedplate.core.rules import Rank
from bedplate.core.state import State
from bedplate.core.states import Card, Slot, Tenant, Turn

CARDS_KEPT_SCAN_MAX = 8
"""Cards looked at closely for one to keep, those with the least running first."""


class Share:
    """What one tenant has of the common cards of one group.

    `held_blocks` are those of its slots and promises there, `busy_blocks` those of them that have a
    turn. `waiting` turns of it wait for the group. `kept_blocks` and `kept_tokens` are what cards
    and admission keep of its reserve beyond what runs and what is admitted, `own_tokens` the room
    of cards that slices give it alone.
    """

    __slots__ = (
        "admitted_tokens",
        "busy_blocks",
        "group",
        "held_blocks",
        "kept_blocks",
        "kept_tokens",
        "lend_blocks",
        "own_tokens",
        "reserve_blocks",
        "tenant",
        "waiting",
    )

    def __init__(self, tenant: Tenant, group: Group) -> None:
        self.tenant = tenant
        self.group = group
        self.held_blocks = 0
        self.busy_blocks = 0
        self.admitted_tokens = 0
        self.waiting = 0
        self.reserve_blocks = 0
        self.lend_blocks = 0
        self.own_tokens = 0
        self.kept_blocks = 0
        self.kept_tokens = 0


def share_of(state: State, group: Group, tenant: Tenant) -> Share:
    """Return the tenant's share of a group's cards, made on first sight."""
    found = group.shares.get(tenant.id)
    if found is None:
        found = group.shares[tenant.id] = Share(tenant, group)
        renew(state, found)
    return found


def enlist(state: State, group: Group) -> None:
    """Put the policy's reserves in force in a group, of tenants that never called too.

    Cost: O(tenants).
    """
    for policy in state.policy.tenants:
        if policy.reserve_tokens:
            share_of(state, group, state.tenant(policy.tenant))
    for part in state.policy.slices:
        if part.kv_tokens and part.model == group.model:
            share_of(state, group, state.tenant(part.tenant))
    for share in group.shares.values():
        renew(state, share)


def renew(state: State, share: Share) -> None:
    """Set what a tenant's reserve in a group is now. Cost: O(slices)."""
    group = share.group
    policy: TenantPolicy = share.tenant.policy
    tokens = policy.reserve_tokens
    for part in state.policy.slices:
        if part.tenant == share.tenant.id and part.model == group.model:
            tokens += part.kv_tokens if part.from_ns <= state.now_ns < part.until_ns else 0
    group.reserve_blocks -= share.reserve_blocks
    share.reserve_blocks = tokens // group.block_tokens
    share.lend_blocks = min(share.reserve_blocks, -(-policy.lend_tokens // group.block_tokens))
    group.reserve_blocks += share.reserve_blocks
    keep(share)


def keep(share: Share) -> None:
    """Renew how much of the group's room is kept for the share beyond what it has."""
    if not (share.reserve_blocks or share.own_tokens or share.kept_blocks or share.kept_tokens):
        return
    group = share.group
    protected = share.reserve_blocks - (0 if share.waiting else share.lend_blocks)
    blocks = max(0, protected - share.busy_blocks)
    room_tokens = protected * group.block_tokens + share.own_tokens
    tokens = max(0, room_tokens - share.admitted_tokens)
    group.kept_blocks += blocks - share.kept_blocks
    group.kept_tokens += tokens - share.kept_tokens
    share.kept_blocks = blocks
    share.kept_tokens = tokens


def hold(card: Card, share: Share, blocks: int, *, busy: bool) -> None:
    """Count blocks that a tenant holds on a card from now on, fewer if negative."""
    share.tenant.card_blocks += blocks
    share.tenant.busy_blocks += blocks if busy else 0
    if card.common:
        _count(share, blocks, blocks if busy else 0)


def run(card: Card, share: Share, blocks: int) -> None:
    """Count blocks that it held already as those of a running turn; as idle again if negative."""
    share.tenant.busy_blocks += blocks
    if card.common:
        _count(share, 0, blocks)


def _count(share: Share, held: int, busy: int) -> None:
    share.held_blocks += held
    share.busy_blocks += busy
    share.group.busy_blocks += busy
    assert 0 <= share.busy_blocks <= share.held_blocks
    keep(share)


def set_common(card: Card, *, on: bool) -> None:
    """Count a card among those that all tenants share, or no longer. Cost: O(slots)."""
    if card.common == on:
        return
    sign = 1 if on else -1
    for slot in card.slots:
        if slot.branch is not None and slot.blocks:
            busy = slot.blocks if slot.turn is not None else 0
            _count(slot.branch.share, sign * slot.blocks, sign * busy)
    for turn in card.placed.values():
        _count(turn.branch.share, sign * turn.claim_blocks, sign * turn.claim_blocks)
    card.common = on
    if not on:
        give_back(card.kept_for)


def recount(state: State, group: Group) -> None:
    """Renew which cards of a group are common, and what they have. Cost: O(cards).

    And O(slots) of those that changed.
    """
    for card in group.cards:
        set_common(card, on=card.up and not card.draining and card.slice is None)
    group.common_blocks = sum(card.total_blocks for card in group.cards if card.common)
    for share in group.shares.values():
        if share.own_tokens:
            share.own_tokens = 0
            keep(share)
    for card in group.cards:
        if card.slice is not None:
            share = share_of(state, group, state.tenant(card.slice.tenant))
            share.own_tokens += card.total_blocks * group.block_tokens
            keep(share)


def wait(turn: Turn, change: int) -> None:
    """Count a turn that begins to wait (1) or does no longer (-1)."""
    branch = turn.branch
    branch.session.tenant.waiting[turn.lane] += change
    branch.share.waiting += change
    assert branch.session.tenant.waiting[turn.lane] >= 0
    keep(branch.share)


def admit(share: Share, tokens: int) -> None:
    """Count tokens of admitted sessions, fewer if negative."""
    share.admitted_tokens += tokens
    share.group.admitted_tokens += tokens
    keep(share)


def entitled_tokens(share: Share) -> int:
    """Return how much of a tenant's admitted sessions nobody may keep from it."""
    return share.reserve_blocks * share.group.block_tokens + share.own_tokens


def within(turn: Turn) -> bool:
    """Tell whether a turn runs inside its tenant's reserve."""
    share = turn.branch.share
    return 0 < share.busy_blocks + turn.need_blocks <= share.reserve_blocks


def may_run(card: Card, turn: Turn, blocks: int) -> bool:
    """Tell whether a turn of so many blocks leaves others their reserves. Cost: O(1)."""
    if not card.common:
        return True
    group = card.group
    share = turn.branch.share
    if share.busy_blocks + blocks <= share.reserve_blocks:
        return True
    first = card.kept_for
    if first is not None and first is not turn and _goes_first(first, turn):
        return False
    if not group.reserve_blocks:
        return True
    kept = group.kept_blocks - share.kept_blocks
    return group.busy_blocks + blocks + kept <= group.common_blocks


def _goes_first(first: Turn, turn: Turn) -> bool:
    """Tell whether a card that is kept for one turn is closed to another.

    One that was passed too often does not wait for what would wait for it (`retention`).
    """
    if within(first):
        return True
    passed = first.passed_over >= PASSED_OVER_MAX
    return passed and (first.lane, first.serial) < (turn.lane, turn.serial)


def keep_card(turn: Turn) -> None:
    """Let a turn within a reserve that found no room have the next that is free on one card.

    One that is bound to its card has it as well once others passed it there too often.
    That is a card where idle KV within reserves leaves it room, with the least running. Cost:
    O(cards log cards + slots of a few).
    """
    home = turn.bound_to
    passed = home is not None and turn.passed_over >= PASSED_OVER_MAX
    if turn.kept is not None or not (passed or within(turn)):
        return
    cards = turn.branch.group.cards if home is None else [home]
    takes = [c for c in cards if c.common and c.kept_for is None]
    takes = [c for c in takes if turn.prompt_tokens + turn.limit_tokens <= c.context_tokens]
    takes.sort(key=lambda card: (card.busy_blocks + card.claimed_blocks, card.index))
    for card in takes[:CARDS_KEPT_SCAN_MAX]:
        if not shut_out(card, turn):
            turn.kept = card
            card.kept_for = turn
            return


def shut_out(card: Card, turn: Turn) -> bool:
    """Tell whether idle KV within reserves leaves a turn no room on a card, whatever else goes.

    Cost: O(idle slots).
    """
    if not card.group.reserve_blocks:
        return False
    firm = sum(slot.blocks for slot in card.idle.values() if not may_go(slot, turn))
    return firm + turn.need_blocks > card.total_blocks


def give_back(turn: Turn | None) -> None:
    """Let go of the card that was kept for a turn."""
    if turn is not None and turn.kept is not None:
        turn.kept.kept_for = None
        turn.kept = None


def crowded_out(turn: Turn) -> bool:
    """Tell whether reserves of others leave a turn no room, even if nothing ran."""
    share = turn.branch.share
    group = share.group
    if not group.reserve_blocks or within(turn):
        return False
    return turn.need_blocks + group.kept_blocks - share.kept_blocks > group.common_blocks


def may_go(slot: Slot, turn: Turn) -> bool:
    """Tell whether idle KV may go for a turn without its tenant falling below its reserve."""
    branch = slot.branch
    assert branch is not None
    share = branch.share
    if share is turn.branch.share or not slot.card.common:
        return True
    return share.reserve_blocks == 0 or share.held_blocks - slot.blocks >= share.reserve_blocks


def by_excess(state: State, idle: list[Slot], turn: Turn) -> tuple[list[Slot], list[Slot]]:
    """Return idle slots in the order in which they go for a turn, and those within reserves.

    The tenant that is the most above its reserve gives first, of its slots the least worth; who
    takes counts with what it will hold. Cost: O(slots log slots).
    """
    ranked: dict[TenantId, list[tuple[Rank, Slot]]] = {}
    for slot in idle:
        assert slot.branch is not None
        tenant = slot.branch.session.tenant.id
        ranked.setdefault(tenant, []).append((state.rules.worth(state, slot), slot))
    heap: list[tuple[int, TenantId]] = []
    mine = turn.branch.share
    for tenant, slots in ranked.items():
        slots.sort(key=lambda item: item[0], reverse=True)
        first = slots[0][1].branch
        assert first is not None
        taken = turn.need_blocks if first.share is mine else 0
        heapq.heappush(heap, (first.share.reserve_blocks - first.share.held_blocks - taken, tenant))
    order: list[Slot] = []
    firm: list[tuple[Rank, Slot]] = []
    while heap:
        below, tenant = heapq.heappop(heap)
        rank, slot = ranked[tenant].pop()
        assert slot.branch is not None
        share = slot.branch.share
        if share is mine or not share.reserve_blocks or below + slot.blocks <= 0:
            order.append(slot)
            below += slot.blocks
        else:
            firm.append((rank, slot))
        if ranked[tenant]:
            heapq.heappush(heap, (below, tenant))
    firm.sort(key=lambda item: item[0])
    return order, [slot for _, slot in firm]


def may_go_below(turn: Turn, card: Card, *, idle: list[Slot], blocks: int, short: int) -> bool:
    """Tell whether KV within reserves may go too, for a turn that takes `blocks` more there.

    The turn's tenant stays within its own reserve then, and its card will not have what is `short`
    either when those above their reserves have ended their turns.
    """
    mine = turn.branch.share
    given = [s for s in idle if s.branch is not None and s.branch.share is mine]
    left = turn.branch.slot
    held = mine.held_blocks + blocks - sum(slot.blocks for slot in given)
    if left is not None and left.turn is None and left.card.common and left not in given:
        held -= 0 if left.card is card else left.blocks
    if held > mine.reserve_blocks:
        return False
    soon = 0
    for slot in card.slots:
        branch = slot.branch
        if slot.turn is not None and branch is not None and branch.share is not mine:
            share = branch.share
            soon += slot.blocks if share.held_blocks > share.reserve_blocks else 0
    return soon == 0 or soon < short
