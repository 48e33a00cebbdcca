"""Where baselines run a turn.

Routers hand a turn on as soon as a card can take it, and it stands in the engine's own line. A
scheduler inside an engine has an order: one that computes prompts in chunks begins a waiting one as
soon as a step has room, so about one prompt at a time is under way, and the order decides which is
next. In the twin a dispatched prompt cannot be overtaken; so turns of such schedulers wait in the
core until their card has fewer than `AHEAD_TOKENS` of prompts to compute (`in_line`).
"""

from __future__ import annotations

from collections.abc import Callable

from bedplate.core.card import can_open, first_by_load, free_slot, takes
from bedplate.core.placement import Plan, home_of, usable_tokens
from bedplate.core.retention import victims_for
from bedplate.core.state import State
from bedplate.core.states import Card, Entry, Turn
from bedplate.core.units import blocks_for

AHEAD_TOKENS = 8_192
"""Enough to keep a card busy until the next prompt is there."""


def in_line(state: State, turn: Turn) -> Plan | None:
    """Run as `home_first`, on cards whose line is short."""
    return home_first(state, turn, _short_line)


def _short_line(card: Card) -> bool:
    return card.prompt_tokens < AHEAD_TOKENS


def any_card(card: Card) -> bool:
    """Take every card."""
    return True


def home_first(state: State, turn: Turn, usable: Callable[[Card], bool] = any_card) -> Plan | None:
    """Run where the KV is; where that card has no room, on the `usable` one with fewest turns."""
    home = home_of(turn)
    if home is None or usable(home.card):
        found = _at_home(state, turn)
        if found is not None:
            return found
    return _anywhere(state, turn, usable)


def sticky(state: State, turn: Turn) -> Plan | None:
    """Run on the session's card and wait for it; its first turn goes where the fewest run."""
    card = _last_card(turn)
    if card is None:
        return _anywhere(state, turn)
    return _at_home(state, turn) or on_card(state, turn, card)


def rotate(state: State, turn: Turn, number: int) -> Plan | None:
    """Run turn `number` on the card whose turn it is, wherever its KV is, and wait for that one."""
    cards = [card for card in turn.branch.group.cards if card.up]
    card = cards[number % len(cards)]
    home = home_of(turn)
    if home is not None and home.card is card:
        return _at_home(state, turn)
    return on_card(state, turn, card)


def on_card(state: State, turn: Turn, card: Card) -> Plan | None:
    """Return the way to run a turn in another slot of a card, None with the reason in `why`."""
    turn.why = "no_room"
    if not can_open(card) or not takes(card, turn.prompt_tokens + turn.limit_tokens):
        return None
    home = home_of(turn)
    if home is not None and home.dirty and home.card.kv == "full" and home.card is not card:
        turn.why = "home_busy"
        return None
    slot = free_slot(card)
    need_slot = slot is None
    load = _load(turn, card)
    blocks = turn.need_blocks
    if load is not None:
        blocks = max(blocks, blocks_for(load.tokens, state.policy.block_tokens))
    victims = victims_for(state, card, turn, blocks=blocks, need_slot=need_slot, keep=None)
    if victims is None:
        return None
    return Plan(card, victims[0] if slot is None else slot, victims, load, blocks)


def _at_home(state: State, turn: Turn) -> Plan | None:
    home = home_of(turn)
    if home is None or not can_open(home.card):
        return None
    extra = max(0, turn.need_blocks - home.blocks)
    victims = victims_for(state, home.card, turn, blocks=extra, need_slot=False, keep=home)
    return None if victims is None else Plan(home.card, home, victims, None, turn.need_blocks)


def _anywhere(state: State, turn: Turn, usable: Callable[[Card], bool] = any_card) -> Plan | None:
    group = turn.branch.group
    found = first_by_load(
        group,
        min_tokens=turn.prompt_tokens + turn.limit_tokens,
        blocks=turn.need_blocks,
        looks=len(group.cards),
        tries=len(group.cards),
        attempt=lambda card: on_card(state, turn, card) if usable(card) else None,
    )
    if found is None and turn.why != "home_busy":
        turn.why = "no_room"
    return found


def _last_card(turn: Turn) -> Card | None:
    for card in turn.branch.group.cards:
        if card.id == turn.branch.card and card.up:
            return card
    return None


def _load(turn: Turn, card: Card) -> Entry | None:
    branch = turn.branch
    entry = branch.entry if branch.entry is not None else branch.source
    if entry is None or card.kv != "full" or not takes(card, entry.tokens):
        return None
    return entry if usable_tokens(entry, turn, can_cut=card.can_cut) > 0 else None
