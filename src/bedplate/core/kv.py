"""Events of KV on its way: stored, loaded, dropped, deleted, failed."""

from __future__ import annotations

from bedplate.core import pool, prefixes, settle
from bedplate.core.actions import Alarm, DropEntry, DropKv
from bedplate.core.card import book, empty_slot, touch
from bedplate.core.cards import recount
from bedplate.core.dispatch import advance, dispatch, leave_slot, scrap_slot
from bedplate.core.events import EntryDropped, KvDropped, KvFailed, KvLoaded, KvStored
from bedplate.core.ids import CardId, EntryId, SlotId
from bedplate.core.leaving import must_go, must_leave
from bedplate.core.placement import shared_tokens
from bedplate.core.retention import drop_slot, hold, retry_stores
from bedplate.core.state import State
from bedplate.core.states import (
    BROKEN,
    DROPPING,
    HELD,
    LOADING,
    RUNNING,
    STORED,
    STORING,
    Card,
    Entry,
    Slot,
    Turn,
)
from bedplate.core.units import blocks_for

DROP_TRIES_MAX = 3
"""Attempts at emptying a slot or deleting an entry before it is given up."""


def stored(state: State, event: KvStored) -> None:
    """The pool has a clean copy: the branch may move, and its older copy goes."""
    slot = _slot(state, event.card, event.slot)
    entry = state.entries.get(event.entry)
    if slot is None or entry is None or slot.entry is not entry:
        state.count("stale_events")
        return
    if slot.state == RUNNING:
        slot.entry = None
        prefixes.stored(state, entry, event.tokens, event.size_bytes)
        return
    assert slot.state == STORING
    pool.stored(state, entry, event.tokens, event.size_bytes)
    branch = slot.branch
    assert branch is not None
    slot.dirty = False
    if branch.session.closing:
        pool.drop(state, entry)
    else:
        pool.give(state, branch, entry)
    _store_over(state, slot)


def _store_over(state: State, slot: Slot) -> None:
    """Let go of a slot after its store ended, well or not, and let its branch go on."""
    slot.entry = None
    slot.state = HELD
    branch = slot.branch
    assert branch is not None
    if must_go(slot):
        drop_slot(state, slot)
    else:
        touch(state, slot.card)
    settle.store_over(state, branch)


def loaded(state: State, event: KvLoaded) -> None:
    """The slot holds the entry: run the turn that waits for it."""
    turn = _loading(state, event.card, event.slot, event.entry)
    if turn is None:
        return
    assert turn.slot is not None
    turn.branch.group.costs.loads.note(event.tokens, state.now_ns - turn.slot.used_ns)
    _load_done(state, turn, event.tokens)


def dropped(state: State, event: KvDropped) -> None:
    """The slot is empty: its blocks are free, and who waits for them goes on."""
    slot = _slot(state, event.card, event.slot)
    if slot is None or slot.state != DROPPING:
        state.count("stale_events")
        return
    empty_slot(state, slot)
    _advance_placed(state, slot.card)


def _advance_placed(state: State, card: Card) -> None:
    for turn in list(card.placed.values()):
        advance(state, turn)


def entry_dropped(state: State, event: EntryDropped) -> None:
    """The pool's bytes are free: stores that waited for them begin.

    An entry that core did not ask to delete is one the pool lost; its branch recomputes.
    """
    entry = state.entries.get(event.entry)
    if entry is None or entry.refs or entry.state == STORING:
        state.count("stale_events")
        return
    pool.forget(state, entry)
    retry_stores(state)


def failed(state: State, event: KvFailed) -> None:
    """Go on without what failed: a store leaves the slot dirty, a load means a prefill."""
    state.count(f"kv_failed_{event.op}")
    slot = _slot(state, event.card, event.slot)
    entry = state.entries.get(event.entry)
    if event.op == "store":
        if slot is None or entry is None or slot.entry is not entry:
            state.count("stale_events")
            return
        pool.forget(state, entry)
        if slot.state == RUNNING:
            slot.entry = None
        else:
            _store_over(state, slot)
        retry_stores(state)
    elif event.op == "load":
        turn = _loading(state, event.card, event.slot, event.entry)
        if turn is not None:
            _load_done(state, turn, 0)
            if entry is not None and entry.refs == 0 and entry.state == STORED:
                pool.drop(state, entry)
    elif event.op == "drop":
        if slot is not None and slot.state == DROPPING:
            _drop_failed(state, slot)
    else:
        assert event.op == "drop_entry", event.op
        if entry is not None and entry.state == DROPPING:
            _drop_entry_failed(state, entry)


def _drop_failed(state: State, slot: Slot) -> None:
    """Try again a few times.

    A slot that cannot be emptied is out of use until its card restarts.
    """
    card = slot.card
    if slot.drop_tries < DROP_TRIES_MAX:
        slot.drop_tries += 1
        state.emit(DropKv(card.id, slot.id))
        return
    lost = slot.blocks
    book(state, slot, 0)
    slot.state = BROKEN
    card.total_blocks -= lost
    recount(state, card.group)
    state.emit(Alarm("slot_broken", f"{card.id}/{slot.id}", 1))
    for turn in list(card.placed.values()):
        leave_slot(state, turn)
        settle.retry(state, turn, "engine_error", f"a slot of {card.id} is broken")


def _drop_entry_failed(state: State, entry: Entry) -> None:
    if entry.drop_tries < DROP_TRIES_MAX:
        entry.drop_tries += 1
        state.emit(DropEntry(entry.id))
    else:
        state.emit(Alarm("pool_entry_stuck", str(entry.id), 1))


def _load_done(state: State, turn: Turn, tokens: int) -> None:
    """Run the turn whose load ended, or end it if it was cancelled meanwhile.

    `tokens` is what the slot holds now, 0 after a failure.
    """
    slot = turn.slot
    assert slot is not None
    assert turn.state == LOADING
    entry = turn.load
    assert entry is not None
    turn.load = None
    branch = turn.branch
    pool.unpin(state, entry)
    slot.tokens = tokens
    slot.loaded = tokens > 0
    slot.shared_tokens = min(tokens, shared_tokens(entry, turn))
    if entry.prefix is not None:  # what is loaded is the turn's own opening
        turn.reuse_tokens = max(turn.reuse_tokens, slot.shared_tokens)
    if not turn.end_reason and not must_leave(slot.card, turn):
        dispatch(state, turn)
        return
    own = branch.entry is entry and entry.state == STORED and not branch.session.closing
    leave_slot(state, turn)
    if own and tokens:
        slot.dirty = False
        hold(state, slot, blocks_for(tokens, state.policy.block_tokens))
        state.loose.append(slot)
    else:
        scrap_slot(state, slot)
    if turn.end_reason:
        settle.lose(state, turn, turn.end_reason, turn.end_detail)
    else:
        settle.requeue(state, turn)


def _loading(state: State, card: CardId, slot_id: SlotId, entry: EntryId) -> Turn | None:
    slot = _slot(state, card, slot_id)
    turn = slot.turn if slot is not None else None
    if turn is None or turn.state != LOADING or turn.load is None or turn.load.id != entry:
        state.count("stale_events")
        return None
    return turn


def _slot(state: State, card_id: CardId, slot: SlotId) -> Slot | None:
    card = state.cards.get(card_id)
    if card is None or not card.up or not 0 <= slot < len(card.slots):
        return None
    return card.slots[slot]
