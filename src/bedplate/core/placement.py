"""Where a turn runs: its home while it can run there, else the least loaded card that has room.

The first turn of a session is balanced; later ones stick to the card that holds their KV. When the
home is busy and the pool has the same KV, the turn moves, since a load is cheap; when the only copy
is on the home (dirty), the turn waits for it ("home_busy") rather than compute everything again. An
endpoint that keeps its own cache (`kv` = hints) is a home as long as it can take the turn; then
another computes, for nobody can tell how long the cache would have kept it.

A card that failed a turn is passed over for it while another one could take it: an endpoint that
breaks at once has no load, and would be chosen again and again. One whose breaker is open
(`breaker`) takes no turn at all, and is nobody's home meanwhile.
"""

from __future__ import annotations

from typing import NamedTuple

from bedplate.core import shares
from bedplate.core.card import (
    can_open,
    could_hold,
    first_by_load,
    free_slot,
    held_by,
    open_to,
    rank,
    takes,
    takes_prompt,
)
from bedplate.core.prefixes import opening_of
from bedplate.core.retention import victims_for
from bedplate.core.state import State
from bedplate.core.states import BREAKER_OPEN, HELD, Card, Entry, Slot, Turn
from bedplate.core.units import blocks_for

CARDS_SEEN_MAX = 32
"""Cards looked at for one turn in one step, least loaded first."""
CARDS_TRIED_MAX = 4
"""Cards of these whose idle slots are gone through: those that running turns leave room on."""


class Plan(NamedTuple):
    """A way to run a turn now: drop `victims`, fill `slot` from `load` if given, dispatch.

    The turn occupies `blocks` of the card: what it may grow to, or what is loaded, if that is more.
    `evicted` counts the victims that go for the limit of the turn's own tenant.
    """

    card: Card
    slot: Slot
    victims: list[Slot]
    load: Entry | None
    blocks: int
    evicted: int = 0


def usable_tokens(held: Slot | Entry, turn: Turn, *, can_cut: bool) -> int:
    """Return how many leading prompt tokens the KV in a slot or an entry saves this turn.

    At least one prompt token is always computed. An engine that cannot cut KV back uses all of it
    or nothing; what was delivered before a turn made way is in it too.
    """
    known = held.tokens if held is opening_of(turn) else turn.reuse_tokens
    shared = min(shared_tokens(held, turn), known)
    if not can_cut and min(shared, turn.prompt_tokens + turn.out_tokens - 1) != held.tokens:
        return 0
    return min(shared, turn.prompt_tokens - 1)


def shared_tokens(held: Slot | Entry, turn: Turn) -> int:
    """Return how many leading tokens of what is held are on the turn's line."""
    branch = turn.branch
    return branch.source_tokens if held is branch.source else held.shared_tokens


def home_of(turn: Turn) -> Slot | None:
    """Return the slot with KV of use to the turn, on a card that takes turns of its length."""
    slot = turn.branch.slot
    if slot is None or slot.state != HELD or not slot.card.up or slot.card.draining:
        return None
    if slot.card.breaker == BREAKER_OPEN:
        return None
    if not open_to(slot.card, turn):
        return None
    fits = takes(slot.card, turn.prompt_tokens + turn.limit_tokens)
    return slot if fits and _saves(slot, turn, slot.card) else None


def is_bound(turn: Turn) -> bool:
    """Tell whether the turn can only run at its home without computing its context again."""
    home = home_of(turn)
    return home is not None and home.dirty and home.card.kv == "full"


def plan(state: State, turn: Turn) -> Plan | None:
    """Find a way to run the turn now, or None with the reason in `turn.why`. Changes nothing else.

    Cost: O(slots log slots) a card tried.
    """
    home = home_of(turn)
    if home is not None:
        if can_open(home.card) and takes_prompt(home.card, turn, _fresh(home, turn, home.card)):
            extra = max(0, turn.need_blocks - home.blocks)
            own = _over_quota(state, turn, extra, home)
            if own is None:
                return None
            victims = None
            if may_begin(home.card, turn):
                victims = victims_for(
                    state, home.card, turn, blocks=extra, need_slot=False, keep=home
                )
            if victims is not None:
                blocks = turn.need_blocks
                return Plan(home.card, home, _joined(victims, own), None, blocks, len(own))
        if home.dirty and home.card.kv == "full" and not shares.shut_out(home.card, turn):
            turn.why = "home_busy"
            return None
    left = turn.branch.slot  # given up when the turn begins elsewhere
    freed = left.blocks if left is not None else 0
    evicted = _over_quota(state, turn, turn.need_blocks - freed, left)
    if evicted is None:
        return None
    load = _source(turn)
    way = _elsewhere(state, turn, load, evicted)
    longer = load is not None and blocks_for(load.tokens, state.policy.block_tokens)
    if way is None and longer > turn.need_blocks:
        way = _elsewhere(state, turn, None, evicted)  # it fits perhaps where its copy does not
    if way is None and shares.crowded_out(turn):
        turn.why = "reserve"
    return way


def _elsewhere(state: State, turn: Turn, load: Entry | None, evicted: list[Slot]) -> Plan | None:
    """Find a card other than the home that can run the turn, with `load` if it is worth it there.

    `evicted` goes for the limit of its tenant in any case. None with the reason in `turn.why`.
    """
    left = turn.branch.slot
    freed = left.blocks if left is not None else 0
    length = turn.prompt_tokens + turn.limit_tokens
    avoid = turn.failed_on if turn.failed_on and untried(turn) else ()
    busy: list[Card] = []

    def attempt(card: Card) -> Plan | None:
        if card.id in avoid or not open_to(card, turn):
            return None
        slot = free_slot(card)
        source = load if _worth_loading(state, load, turn, card) else None
        blocks = turn.need_blocks
        own: list[Slot] | None = evicted
        if source is not None:
            blocks = max(blocks, blocks_for(source.tokens, state.policy.block_tokens))
            own = _over_quota(state, turn, blocks - freed, left)
        if own is None:  # what would be loaded is too much for the tenant, the turn itself is not
            source, blocks, own = None, turn.need_blocks, evicted
        fresh_tokens = _fresh(source, turn, card)
        if not takes_prompt(card, turn, fresh_tokens):
            if could_hold(card, turn.need_blocks):
                busy.append(card)
            return None
        if not shares.may_run(card, turn, blocks):
            return None
        victims = victims_for(state, card, turn, blocks=blocks, need_slot=slot is None, keep=None)
        if victims is None:
            return None
        chosen = slot if slot is not None else victims[0]
        return Plan(card, chosen, _joined(victims, own), source, blocks, len(own))

    for card in _asked_first(turn, length):
        way = attempt(card)
        if way is not None:
            return way
    way = first_by_load(
        turn.branch.group,
        min_tokens=length,
        blocks=turn.need_blocks,
        looks=CARDS_SEEN_MAX + len(avoid),
        tries=CARDS_TRIED_MAX + len(avoid),
        attempt=attempt,
    )
    if way is None:
        turn.why = "busy" if busy else "no_room"
    return way


def _asked_first(turn: Turn, length: int) -> list[Card]:
    """Return the card that is kept for the turn, and those that a slice gives its tenant alone.

    Cost: O(cards) for a tenant that has such a slice.
    """
    first = [turn.kept] if turn.kept is not None else []
    if turn.branch.share.own_tokens:
        cards = [c for c in turn.branch.group.cards if c.slice is not None and open_to(c, turn)]
        first += sorted(cards, key=rank)
    return [card for card in first if can_open(card) and takes(card, length)]


def may_begin(card: Card, turn: Turn) -> bool:
    """Tell whether reserves of others let a turn go on where its branch's KV is."""
    home = turn.branch.slot
    held = home.blocks if home is not None and home.card is card else 0
    return shares.may_run(card, turn, max(turn.need_blocks, held))


def _fresh(held: Slot | Entry | None, turn: Turn, card: Card) -> int:
    """Return how many prompt tokens the card would compute."""
    saved = usable_tokens(held, turn, can_cut=card.can_cut) if held is not None else 0
    return turn.prompt_tokens - saved


def within_quota(state: State, turn: Turn) -> bool:
    """Tell whether the turn's tenant may hold it on a card, were there room."""
    left = turn.branch.slot
    blocks = turn.need_blocks - (left.blocks if left is not None else 0)
    return _over_quota(state, turn, blocks, left) is not None


def _over_quota(state: State, turn: Turn, blocks: int, keep: Slot | None) -> list[Slot] | None:
    """Choose idle slots of the turn's tenant to drop so that `blocks` more are within its limit.

    The least recently used go first. None, with the reason in `turn.why`, when what its running
    turns hold is too much. Cost: O(slots dropped + those that are being stored).
    """
    tenant = turn.branch.session.tenant
    if not tenant.policy.card_tokens_max:
        return []
    limit = tenant.policy.card_tokens_max // state.policy.block_tokens
    over = tenant.card_blocks + blocks - limit
    chosen: list[Slot] = []
    for slot in tenant.shelf.values():
        if over <= 0:
            break
        if slot is not keep and held_by(slot):
            chosen.append(slot)
            over -= slot.blocks
    if over > 0:
        turn.why = "tenant_card_tokens"
        return None
    return chosen


def _joined(victims: list[Slot], own: list[Slot]) -> list[Slot]:
    return [*victims, *[slot for slot in own if slot not in victims]] if own else victims


def untried(turn: Turn) -> bool:
    """Tell whether a card that has not failed the turn may take it, now or later.

    Cost: O(cards).
    """
    length = turn.prompt_tokens + turn.limit_tokens
    return any(
        card.up
        and not card.draining
        and open_to(card, turn)
        and card.breaker != BREAKER_OPEN
        and card.id not in turn.failed_on
        for card in turn.branch.group.cards
        if takes(card, length)
    )


def _worth_loading(state: State, load: Entry | None, turn: Turn, card: Card) -> bool:
    """Tell whether a load is better than to compute, and the card can hold it; it is cut there."""
    if load is None or card.kv != "full" or not takes(card, load.tokens):
        return False
    saved_tokens = usable_tokens(load, turn, can_cut=card.can_cut)
    return saved_tokens > 0 and state.rules.loads(state, load, saved_tokens)


def _saves(held: Slot | Entry, turn: Turn, card: Card) -> bool:
    return usable_tokens(held, turn, can_cut=card.can_cut) > 0


def _source(turn: Turn) -> Entry | None:
    branch = turn.branch
    if branch.entry is not None:
        return branch.entry
    return branch.source if branch.source is not None else opening_of(turn)
