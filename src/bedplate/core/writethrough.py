"""Write-through: what a turn computed goes to the pool while its tool runs.

A card's copy is then clean and can be dropped at once. The store waits for the end of the step, so
that a next turn which starts in the same step goes first; a turn that could not start waits for the
store, which is short, and may then run on any card.
"""

from __future__ import annotations

from bedplate.core import settle
from bedplate.core.card import held_by
from bedplate.core.leaving import must_go, vacate
from bedplate.core.ready import dequeue
from bedplate.core.retention import NOW, drop_slot, store_slot, writes_through
from bedplate.core.state import State
from bedplate.core.states import BEHIND, READY, Slot


def write_through(state: State) -> None:
    """Store the slots that became idle in this step and still are."""
    loose, state.loose = state.loose, []
    for slot in loose:
        if held_by(slot):
            _settle_slot(state, slot)


def _settle_slot(state: State, slot: Slot) -> None:
    branch = slot.branch
    assert branch is not None
    if branch.session.closing:
        drop_slot(state, slot)
        return
    turn = branch.turns[0] if branch.turns else None
    waiting = turn is not None and turn.state == READY
    if turn is not None and waiting:
        dequeue(turn)
        turn.state = BEHIND
    if must_go(slot):
        vacate(state, slot)
    elif writes_through(state, slot) and store_slot(state, slot) != NOW:
        state.stir(slot.card.group)  # it was spared for the store, and may go now
    if waiting:
        settle.next_turn(state, branch)
