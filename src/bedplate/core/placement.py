"""Where a turn runs: its home while it can run there, else the least loaded card that has room.

The first turn of a session is balanced; later ones stick to the card that holds their KV. When the
home is busy and the pool has the same KV, the turn moves, since a load is cheap; when the only copy
is on the home (dirty), the turn waits for it ("home_busy") rather than compute everything again.
"""

from __future__ import annotations

from typing import NamedTuple

from bedplate.core.card import can_open, free_slot, open_by_load
from bedplate.core.retention import victims_for
from bedplate.core.state import State
from bedplate.core.states import HELD, Branch, Card, Entry, Slot, Turn

CARDS_TRIED_MAX = 4
"""Cards looked at for one turn in one step, least loaded first."""


class Plan(NamedTuple):
    """A way to run a turn now: drop `victims`, fill `slot` from `load` if given, dispatch."""

    card: Card
    slot: Slot
    victims: list[Slot]
    load: Entry | None


def usable_tokens(held_tokens: int, turn: Turn, *, can_cut: bool) -> int:
    """Return how many leading prompt tokens KV of `held_tokens` tokens saves this turn.

    At least one prompt token is always computed. An engine that cannot cut KV back uses all of it
    or nothing.
    """
    usable = min(held_tokens, turn.reuse_tokens, turn.prompt_tokens + turn.out_tokens - 1)
    return usable if can_cut or usable == held_tokens else 0


def home_of(branch: Branch) -> Slot | None:
    """Return the slot that keeps the branch's KV on a card that still takes turns."""
    slot = branch.slot
    if slot is None or slot.state != HELD or not slot.card.up or slot.card.draining:
        return None
    return slot


def is_bound(turn: Turn) -> bool:
    """Tell whether the turn can only run at its home without computing its context again."""
    home = home_of(turn.branch)
    return home is not None and home.dirty and _saves(home.tokens, turn, home.card)


def plan(state: State, turn: Turn) -> Plan | None:
    """Find a way to run the turn now, or None with the reason in `turn.why`. Changes nothing else.

    Cost: O(slots log slots) a card tried.
    """
    home = home_of(turn.branch)
    if home is not None and _saves(home.tokens, turn, home.card):
        if can_open(home.card):
            extra = max(0, turn.need_blocks - home.blocks)
            victims = victims_for(state, home.card, blocks=extra, need_slot=False, keep=home)
            if victims is not None:
                return Plan(home.card, home, victims, None)
        if home.dirty:
            turn.why = "home_busy"
            return None
    load = _source(turn)
    for card in open_by_load(turn.branch.group, min_blocks=turn.need_blocks, tries=CARDS_TRIED_MAX):
        slot = free_slot(card)
        victims = victims_for(
            state, card, blocks=turn.need_blocks, need_slot=slot is None, keep=None
        )
        if victims is not None:
            chosen = slot if slot is not None else victims[0]
            useful = load is not None and card.kv == "full" and _saves(load.tokens, turn, card)
            return Plan(card, chosen, victims, load if useful else None)
    turn.why = "no_room"
    return None


def _saves(held_tokens: int, turn: Turn, card: Card) -> bool:
    return usable_tokens(held_tokens, turn, can_cut=card.can_cut) > 0


def _source(turn: Turn) -> Entry | None:
    branch = turn.branch
    return branch.entry if branch.entry is not None else branch.source
