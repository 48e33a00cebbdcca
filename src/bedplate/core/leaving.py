"""Who must leave a card that is taken out, or that became another tenant's by a slice.

Nothing is cut: running turns end, what they leave and what idles is stored in the pool or dropped,
turns that only had a place there or waited for it look for another.
"""

from __future__ import annotations

from bedplate.core import retention, settle
from bedplate.core.card import held_by, open_to
from bedplate.core.dispatch import leave_slot
from bedplate.core.ready import dequeue
from bedplate.core.state import State
from bedplate.core.states import BEHIND, BREAKER_CLOSED, Card, Slot, Turn


def must_go(slot: Slot) -> bool:
    """Tell whether what a slot keeps has no place on its card any more."""
    card, branch = slot.card, slot.branch
    assert branch is not None
    part = card.slice
    return card.draining or (part is not None and part.tenant != branch.session.tenant.id)


def must_leave(card: Card, turn: Turn) -> bool:
    """Tell whether a turn that did not begin there yet may not begin any more.

    A card that failed others since its load began takes it only as the one that tries the card.
    """
    tried = card.breaker != BREAKER_CLOSED and card.probe != turn.id
    return card.draining or tried or not open_to(card, turn)


def clear(state: State, card: Card) -> None:
    """Let all that must leave a card do so."""
    placed = [turn for turn in card.placed.values() if must_leave(card, turn)]
    for turn in placed:
        leave_slot(state, turn)
    bound = [turn for turn in card.bound.values() if must_leave(card, turn)]
    unbind(bound)
    for slot in card.slots:
        if held_by(slot) and must_go(slot):
            vacate(state, slot)
    for turn in placed:
        settle.requeue(state, turn)
    for turn in bound:
        settle.next_turn(state, turn.branch)


def unbind(bound: list[Turn]) -> None:
    """Take turns that wait for exactly one card out of their line."""
    for turn in bound:
        dequeue(turn)
        turn.state = BEHIND


def vacate(state: State, slot: Slot) -> None:
    """Move idle KV to the pool; without room there, drop it."""
    storable = slot.card.kv == "full" and slot.dirty and state.policy.pool_bytes_max > 0
    if storable and retention.store_slot(state, slot) != retention.NEVER:
        return
    retention.drop_slot(state, slot)
