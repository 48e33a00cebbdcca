"""From a plan to a running turn.

Drop, dropped, load, loaded, dispatch, in this order on each slot.
"""

from __future__ import annotations

from bedplate.core import fairness, pool, prefixes, shares
from bedplate.core.actions import Dispatch, LoadKv
from bedplate.core.card import book, claim, commit, leave, occupy, touch, unclaim
from bedplate.core.eviction import give_up
from bedplate.core.ids import EntryId
from bedplate.core.limits import INTERACTIVE, YIELDS_MAX
from bedplate.core.placement import Plan, usable_tokens
from bedplate.core.ready import dequeue, enqueue
from bedplate.core.retention import drop_slot
from bedplate.core.state import State
from bedplate.core.states import (
    BREAKER_CLOSED,
    CLAIMED,
    FREE,
    HELD,
    LOADING,
    PLACED,
    RUNNING,
    WAITING,
    Card,
    Entry,
    Slot,
    Turn,
)


def start(state: State, turn: Turn, way: Plan) -> None:
    """Carry out a plan as far as it goes now; acknowledgements carry it on through `advance`."""
    branch = turn.branch
    card, slot = way.card, way.slot
    for victim in way.victims:
        give_up(state, victim)
        _displace(state, victim)
    if way.evicted:
        state.count("quota_evictions", way.evicted)
    if branch.slot is not None and branch.slot is not slot:
        assert branch.slot.state == HELD
        drop_slot(state, branch.slot)
    turn.state = PLACED
    turn.why = "room"
    turn.slot = slot
    occupy(slot, turn)
    turn.load = way.load
    if way.load is not None:
        pool.pin(way.load)
    shares.wait(turn, -1)
    branch.session.tenant.running += 1
    state.moved[branch.session.tenant.id] = branch.session.tenant
    fairness.charge_start(turn)
    card.running += 1
    card.group.running += 1
    assert card.running <= card.running_max, card.id
    commit(state, turn, card, turn.prompt_tokens - _expected(way, turn))
    if slot.state == HELD:
        assert slot.branch is branch
        claim(turn, slot, max(0, way.blocks - slot.blocks))
    else:
        claim(turn, slot, way.blocks)
    card.placed[turn.id] = turn
    touch(state, card)
    advance(state, turn)


def _expected(way: Plan, turn: Turn) -> int:
    """Return how much of the prompt the plan's KV saves."""
    held: Slot | Entry = way.load if way.load is not None else way.slot
    mine = held is way.load or way.slot.branch is turn.branch
    return usable_tokens(held, turn, can_cut=way.card.can_cut) if mine else 0


def _displace(state: State, slot: Slot) -> None:
    """Drop an idle slot; a later turn that waited for it goes to the line of its group."""
    assert slot.branch is not None
    turns = slot.branch.turns
    bound = turns[0] if turns and turns[0].bound_to is slot.card else None
    if bound is not None:
        dequeue(bound)
    drop_slot(state, slot)
    if bound is not None:
        enqueue(state, bound)


def advance(state: State, turn: Turn) -> None:
    """Take the next step of a placed turn if its slot and its blocks are there."""
    slot = turn.slot
    assert slot is not None
    assert turn.state == PLACED
    card = slot.card
    assert slot.turn is turn
    at_home = slot.state == HELD and slot.branch is turn.branch
    if not at_home and slot.state != FREE:
        return
    if card.used_blocks + turn.claim_blocks > card.total_blocks:
        return
    extra = turn.claim_blocks
    unclaim(turn, card)
    del card.placed[turn.id]
    if at_home:
        book(state, slot, slot.blocks + extra)
        dispatch(state, turn)
        return
    slot.state = CLAIMED
    slot.branch = turn.branch
    turn.branch.slot = slot
    book(state, slot, extra)
    if turn.load is None:
        dispatch(state, turn)
        return
    turn.state = slot.state = LOADING
    turn.why = "loading"
    branch = turn.branch
    slot.used_ns = card.group.costs.looked_ns = state.now_ns
    state.count("loads")
    state.emit(LoadKv(card.id, slot.id, branch.session.id, branch.id, turn.load.id))


def dispatch(state: State, turn: Turn) -> None:
    """Hand the turn to its card, with what core believes the slot already holds."""
    slot = turn.slot
    assert slot is not None
    assert slot.turn is turn
    branch = turn.branch
    if branch.source is not None:
        source, branch.source = branch.source, None
        pool.unpin(state, source)
    turn.attempt += 1
    turn.state = slot.state = RUNNING
    turn.why = "prefill"
    turn.dispatched_ns = state.now_ns
    if branch.card not in ("", slot.card.id):
        state.count("moves")
    turn.card = branch.card = slot.card.id
    if turn.attempt == 1:
        turn.queue_ns = state.now_ns - turn.arrived_ns
    slot.dirty = True
    turn.loaded, slot.loaded = slot.loaded, False
    if turn.loaded:
        state.count("loads_used")
    expect = usable_tokens(slot, turn, can_cut=slot.card.can_cut)
    turn.expected_tokens = expect
    prefix = prefixes.begin(state, turn)
    commit(state, turn, slot.card, turn.prompt_tokens - expect)
    if _may_yield(turn, slot.card):
        branch.group.may_yield[turn.id] = turn
    state.push_deadline(run_deadline_ns(state, turn), "run", turn.id)
    state.emit(
        Dispatch(
            turn.id,
            turn.attempt,
            branch.session.id,
            branch.id,
            slot.card.id,
            slot.id,
            expect,
            turn.loaded,
            turn.limit_tokens,
            turn.out_tokens,
            prefix.id if prefix is not None else EntryId(0),
            prefix.tokens if prefix is not None else 0,
        )
    )


def _may_yield(turn: Turn, card: Card) -> bool:
    """Tell whether the turn may be stopped on this card, at least until its first token is out.

    Its engine leaves what was given in the slot, whatever else it had computed. A turn that tries a
    card which failed before is left to its end.
    """
    if turn.lane == INTERACTIVE or turn.owed or turn.yields >= YIELDS_MAX:
        return False
    again = turn.resumable or turn.out_tokens == 0
    return again and card.breaker == BREAKER_CLOSED and card.kv == "full"


def leave_slot(state: State, turn: Turn) -> Slot:
    """Part a turn from the slot it was placed on, wherever it got to; returns the slot.

    The slot keeps its blocks and state; the caller holds, drops or empties it.
    """
    slot = turn.slot
    assert slot is not None
    card = slot.card
    if turn.state == PLACED:
        unclaim(turn, card)
        del card.placed[turn.id]
    if turn.load is not None:
        entry, turn.load = turn.load, None
        pool.unpin(state, entry)
    if slot.state == RUNNING and slot.entry is not None:
        prefixes.abandon(state, slot)
    if turn.dispatched_ns:
        turn.slot_ns += state.now_ns - turn.dispatched_ns
        turn.dispatched_ns = 0
    turn.slot = None
    turn.loaded = False
    card.group.may_yield.pop(turn.id, None)
    commit(state, turn, card, 0)
    leave(slot)
    card.running -= 1
    card.group.running -= 1
    tenant = turn.branch.session.tenant
    tenant.running -= 1
    state.moved[tenant.id] = tenant
    if tenant.policy.running_max or tenant.policy.card_tokens_max:
        for group in state.groups.values():  # its limit spans models
            state.stir(group)
    assert card.running >= 0
    assert turn.state not in WAITING
    touch(state, card)
    return slot


def run_deadline_ns(state: State, turn: Turn) -> int:
    """Return when a running turn must have ended.

    That is a base, and time for each token that it may compute.
    """
    length = turn.prompt_tokens + turn.limit_tokens
    return turn.dispatched_ns + state.policy.run_base_ns + state.policy.run_token_ns * length


def scrap_slot(state: State, slot: Slot) -> None:
    """Drop what a turn left on its slot when it is of no further use."""
    if slot.state in (CLAIMED, LOADING, RUNNING):
        slot.state = HELD
        drop_slot(state, slot)
