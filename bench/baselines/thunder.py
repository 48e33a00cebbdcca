"""ThunderAgent (2602.13692): sessions go on only while the contexts of all that do fit the cards.

A session that thinks counts with its context and a buffer of 100 tokens. One whose tool runs counts
half as much with every five seconds that it is away; that is looked at every five seconds. Who does
not fit is paused between two turns, the latest sessions first. KV goes shortest context first.
"""

from __future__ import annotations

from bedplate.core.group import Group
from bedplate.core.placement import Plan
from bedplate.core.rules import Rank
from bedplate.core.state import State
from bedplate.core.states import Slot, Turn
from bedplate.core.units import SECOND_NS
from bedplate.twin.run import Site
from bench.baselines import placing
from bench.baselines.form import LRU, Chosen, by_session

PERIOD_NS = 5 * SECOND_NS
BUFFER_TOKENS = 100


class Thunder:
    """One run."""

    def __init__(self) -> None:
        self._looked_ns = -PERIOD_NS
        self._acting_tokens = 0

    def chosen(self) -> Chosen:
        """Return the rules of this run."""
        rules = LRU._replace(rank=by_session, plan=self._plan, worth=_shortest)
        return Chosen(rules)

    def _plan(self, state: State, turn: Turn) -> Plan | None:
        group = turn.branch.group
        if state.now_ns - self._looked_ns >= PERIOD_NS:
            self._looked_ns = state.now_ns
            self._acting_tokens = _acting(state, group)
        thinking, count, room = 0, 0, 0
        for card in group.cards:
            thinking += card.busy_blocks + card.claimed_blocks
            count += card.running
            room += card.total_blocks if card.up else 0
        need = turn.prompt_tokens + turn.limit_tokens + (count + 1) * BUFFER_TOKENS
        used = thinking * group.block_tokens + self._acting_tokens
        if count and used + need > room * group.block_tokens:
            turn.why = "no_room"
            return None
        return placing.in_line(state, turn)


def _acting(state: State, group: Group) -> int:
    """Return the tokens of contexts whose tools run, by how long they do."""
    tokens = 0
    for card in group.cards:
        for slot in card.idle.values():
            if slot.branch is not None:
                periods = (state.now_ns - slot.branch.ended_ns) // PERIOD_NS
                tokens += slot.tokens >> min(periods, 62)
    return tokens


def _shortest(state: State, slot: Slot) -> Rank:
    """Rank idle slots by the length of their context."""
    return (slot.tokens, slot.id)


def make(site: Site) -> Chosen:
    """Return the policy."""
    return Thunder().chosen()
