"""Where a ready turn waits: in its group's line, or bound to the one card that has its KV."""

from __future__ import annotations

from bedplate.core import lane as line
from bedplate.core import shares
from bedplate.core.placement import home_of, is_bound
from bedplate.core.state import State
from bedplate.core.states import READY, Turn


def enqueue(state: State, turn: Turn) -> None:
    """Make a turn ready."""
    assert turn.slot is None
    turn.state = READY
    turn.why = "ready"
    turn.passed_over = 0
    turn.rank = state.rules.rank(state, turn)
    group = turn.branch.group
    home = home_of(turn)
    if home is not None and is_bound(turn):
        turn.bound_to = home.card
        home.card.bound[turn.id] = turn
        group.bound_cards[home.card.id] = home.card
    else:
        line.push(group.queues, turn)
    state.stir(group)


def dequeue(turn: Turn) -> None:
    """Take a ready turn out of where `enqueue` put it."""
    assert turn.state == READY
    shares.give_back(turn)
    group = turn.branch.group
    card = turn.bound_to
    if card is None:
        line.remove(group.queues, turn)
        return
    turn.bound_to = None
    del card.bound[turn.id]
    if not card.bound:
        del group.bound_cards[card.id]
