"""What idle KV is worth: the time that its return saves, for each token of room and of waiting.

    density = what getting a token back would cost × how fast its branch comes back × lane

A clean copy on a card costs a load, or a prefill where that is cheaper; a dirty one a prefill.
What that takes is learned (`costs`), as is how fast a branch comes back (`returns`). A lane counts
double the next lower one. Until anything is known, who was idle for longest goes first. Copies in
the pool all save the same for each token.

Densities follow Continuum, SAGA and the index of Gittins (`tools`); contexts are given up whole, as
the marginal cost of a prefill is highest for the last tokens. A greedy choice by density costs at
most the optimum and its last victim more. (Shortest context first, which was published as optimal,
is not: of 4, 5 and 6 tokens with costs in their squares and 6 needed it pays 41, where 36 do.)
"""

from __future__ import annotations

from bedplate.core.costs import SAME
from bedplate.core.group import Group
from bedplate.core.lease import DENSITY_BITS, expired
from bedplate.core.limits import BATCH
from bedplate.core.returns import prefix_rate, rate
from bedplate.core.rules import Rank
from bedplate.core.state import State
from bedplate.core.states import HELD, Branch, Entry, Session, Slot

SPARE_BITS = 2
"""A copy in the pool whose KV a card has too is worth a quarter: it is needed after two losses."""

YIELD_TIMES = 2
"""A session that waited for room would have given more than what is freed for it is worth."""


def worth(state: State, slot: Slot) -> Rank:
    """Rank an idle slot of a card, the least goes first. Cost: O(1), amortised.

    Lease run out before leased, clean before dirty, least density, the largest (one instead of
    several), least recently used, slot id.
    """
    branch = slot.branch
    assert branch is not None
    leased = not expired(branch.session, state.now_ns)
    density = slot_density(state, slot)
    return (int(leased), int(slot.dirty), density, -slot.blocks, slot.used_ns, slot.id)


def slot_density(state: State, slot: Slot) -> int:
    """Return what a token of an idle slot is worth."""
    branch = slot.branch
    assert branch is not None
    costs = slot.card.group.costs
    cost = costs.compute()
    if not slot.dirty:
        cost = min(cost, costs.load(slot.tokens))
    return density_of(state, branch, cost)


def entry_worth(state: State, entry: Entry) -> Rank:
    """Rank a copy in the pool of a branch or of an opening, the least goes first."""
    branch = entry.branch
    if branch is None:
        assert entry.prefix is not None
        speed = prefix_rate(entry.prefix, state.now_ns)
        return ((SAME * speed << (BATCH - entry.prefix.lane)) >> DENSITY_BITS, entry.id)
    spare = branch.slot is not None and branch.slot.state == HELD
    return (density_of(state, branch, SAME) >> (SPARE_BITS if spare else 0), entry.id)


def density_of(state: State, branch: Branch, cost: int) -> int:
    """Return what a token of KV is worth that would cost so much to get back."""
    return (cost * rate(state, branch) << (BATCH - branch.session.lane)) >> DENSITY_BITS


def yield_room(state: State, group: Group, session: Session) -> None:
    """Learn the price of room from an idle session that steps back for one that waited."""
    for branch in session.branches.values():
        if branch.group is group and branch.slot is not None and branch.slot.state == HELD:
            group.costs.pay(YIELD_TIMES * slot_density(state, branch.slot), state.now_ns)


def give_up(state: State, slot: Slot) -> None:
    """Learn the price of room from a slot that a turn needs more."""
    state.count("evictions")
    slot.card.group.costs.pay(slot_density(state, slot), state.now_ns)
