"""ThunderAgent (2602.13692): whole sessions are let in as long as their contexts fit the cards.

A session that thinks counts with its context and a buffer of 100 tokens; one whose tool runs counts
half as much with every five seconds that it is away, the period in which the paper looks again.
Who comes back asks again, and waits when the room is gone. KV goes shortest context first.
"""

from __future__ import annotations

from bedplate.core.admission import withdraw
from bedplate.core.rules import Rank
from bedplate.core.state import State
from bedplate.core.states import Group, Session, Slot, Turn
from bedplate.core.units import SECOND_NS
from bedplate.twin.run import Site
from bench.baselines.form import LRU, Chosen, by_session

PERIOD_NS = 5 * SECOND_NS
BUFFER_TOKENS = 100


def fits(state: State, group: Group, turn: Turn) -> bool:
    """Tell whether the contexts of all that are in leave room for one more.

    Cost: O(sessions that are idle), once each.
    """
    if turn.branch.session.admitted:
        return True
    room = group.block_tokens * sum(card.total_blocks for card in group.cards if card.up)
    acting = 0
    for lane in group.idle:
        for session in list(lane.values()):
            acting += _discounted(state, session)
            withdraw(state, session)
    need = turn.prompt_tokens + turn.limit_tokens + BUFFER_TOKENS
    return group.admitted_tokens + acting + need <= room or group.admitted_tokens == 0


def _discounted(state: State, session: Session) -> int:
    tokens = 0
    for branch in session.branches.values():
        if branch.slot is not None:
            periods = (state.now_ns - branch.ended_ns) // PERIOD_NS
            tokens += branch.slot.tokens >> min(periods, 62)
    return tokens


def worth(state: State, slot: Slot) -> Rank:
    """Rank idle slots by the length of their context."""
    return (slot.tokens, slot.id)


def make(site: Site) -> Chosen:
    """Return the policy."""
    return Chosen(LRU._replace(rank=by_session, fits=fits, worth=worth))
