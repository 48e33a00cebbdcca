"""Circuit breakers: a card that keeps failing turns is left alone for a while, then tried by one.

           failures                    pause over                  a turn ends well
    CLOSED ────────► OPEN (no turns) ───────────► HALF (a probe) ─────────────────────► CLOSED
                      ▲                            │ one fails: open again, for longer
                      └────────────────────────────┘

A half open card has one turn at a time on its way to a first token, its probe: when that is out,
the next may try, for a client that reads slowly or wants much would hold the card for minutes.

A failure is a strike, a good end takes one back, and strikes older than BREAKER_WINDOW_NS are
forgotten: a card opens after BREAKER_STRIKES more failures than good ends. One that lets a turn run
out of time without a single token opens at once, since each such turn costs minutes. What is no
fault of the card does not count: no room, a client that leaves or holds its turn up, a request that
the engine refuses, time that the journal stood still, a card that is lost (it is down, and empty
when it comes back: then one turn tries it).

ADR 0011 protects one turn from the card that failed it; the breaker protects all others.
"""

from __future__ import annotations

from bedplate.core import leaving, settle
from bedplate.core.actions import Alarm
from bedplate.core.card import touch
from bedplate.core.dispatch import leave_slot
from bedplate.core.group import Group
from bedplate.core.ids import CardId, TurnId
from bedplate.core.limits import (
    BREAKER_PAUSE_MAX_NS,
    BREAKER_PAUSE_NS,
    BREAKER_STRIKES,
    BREAKER_WINDOW_NS,
)
from bedplate.core.state import State
from bedplate.core.states import BREAKER_CLOSED, BREAKER_HALF, BREAKER_OPEN, Card

FAULTS = ("engine_error", "engine_protocol_error", "engine_lost", "engine_timeout")
"""Codes of a failed dispatch that are the card's fault."""


def failed(state: State, card: Card, *, silent: bool) -> None:
    """Count a failure; `silent`: the turn ran out of time without a token.

    One during a pause says nothing new. Once the pause is over it is one of the trial, even if the
    deadline that ends the pause has not been looked at in this step.
    """
    if card.breaker == BREAKER_OPEN and state.now_ns < card.open_until_ns:
        return
    if state.now_ns - card.struck_ns > BREAKER_WINDOW_NS:
        card.strikes = 0
    card.strikes = BREAKER_STRIKES if silent else card.strikes + 1
    card.struck_ns = state.now_ns
    if card.breaker != BREAKER_CLOSED or card.strikes >= BREAKER_STRIKES:
        _open(state, card)


def worked(state: State, card: Card) -> None:
    """Count a turn that ended well; it closes an open breaker whenever it was begun."""
    card.strikes = max(0, card.strikes - 1)
    if card.breaker != BREAKER_CLOSED:
        card.breaker = BREAKER_CLOSED
        card.probe = TurnId("")
        card.strikes = card.trips = 0
        state.emit(Alarm("breaker", card.id, 0))
        touch(state, card)


def spoke(card: Card, turn: TurnId) -> None:
    """Let another turn try the card when the first token of its probe is out."""
    if card.probe == turn:
        card.probe = TurnId("")


def _open(state: State, card: Card) -> None:
    """Let no turn begin on the card for a pause that doubles each time; those that wait go away."""
    pause_ns = min(BREAKER_PAUSE_MAX_NS, BREAKER_PAUSE_NS << min(card.trips, 16))
    card.breaker = BREAKER_OPEN
    card.trips += 1
    card.probe = TurnId("")
    card.open_until_ns = state.now_ns + pause_ns
    state.push_deadline(card.open_until_ns, "breaker", card.id)
    state.count("breaker_opened")
    state.emit(Alarm("breaker", card.id, 1))
    touch(state, card)
    placed = list(card.placed.values())
    for turn in placed:
        leave_slot(state, turn)
    bound = list(card.bound.values())
    leaving.unbind(bound)
    for turn in placed:
        settle.requeue(state, turn)
    for turn in bound:
        settle.next_turn(state, turn.branch)


def due(state: State, card_id: CardId) -> None:
    """Let one turn try a card whose pause is over."""
    card = state.cards.get(card_id)
    if card is None or card.breaker != BREAKER_OPEN:
        return
    if card.open_until_ns > state.now_ns:
        state.push_deadline(card.open_until_ns, "breaker", card.id)
        return
    card.breaker = BREAKER_HALF
    touch(state, card)


def wait_ns(state: State, group: Group) -> int:
    """Return how long until a card of the group may take turns, if breakers alone forbid it now.

    0 when one may now, or when no card is up and in. Cost: O(cards that are left alone).
    """
    soonest_ns = -1
    for card in group.cards:
        if not card.up or card.draining:
            continue
        if card.breaker != BREAKER_OPEN:
            return 0
        if soonest_ns < 0 or card.open_until_ns < soonest_ns:
            soonest_ns = card.open_until_ns
    return max(0, soonest_ns - state.now_ns)
