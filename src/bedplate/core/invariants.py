"""The numbered invariants of docs/invariants.md, checked over the whole state.

Core asserts each where it changes what the invariant is about; this module looks at everything at
once, for tests, for snapshots and after recovery. Cost: O(state).
"""

from __future__ import annotations

from bedplate.core.base import Base
from bedplate.core.limits import LANE_NAMES
from bedplate.core.state import State
from bedplate.core.states import (
    BEHIND,
    BREAKER_HALF,
    BROKEN,
    CLAIMED,
    DROPPING,
    FREE,
    HELD,
    LOADING,
    PLACED,
    QUEUED,
    READY,
    RUNNING,
    STORED,
    STORING,
    WAITING,
    Card,
    Entry,
    Group,
    Slot,
    Turn,
)
from bedplate.errors import InvariantViolation


def check(base: Base) -> None:
    """Raise InvariantViolation for the first invariant that does not hold."""
    state = base.state
    for card in state.cards.values():
        _card(card)
    _require(state.retry_owed >= 0, "INV-21", "pool")
    for turn in state.turns.values():
        _turn(turn)
    for group in state.groups.values():
        _group(state, group)
    _sessions(state)
    _pool(state)
    _tenants(state)


def _require(holds: bool, number: str, subject: str) -> None:
    if not holds:
        raise InvariantViolation(f"{number} does not hold for {subject}")


def _card(card: Card) -> None:
    used = sum(slot.blocks for slot in card.slots)
    dropping = sum(slot.blocks for slot in card.slots if slot.state == DROPPING)
    claimed = sum(turn.claim_blocks for turn in card.placed.values())
    _require(used == card.used_blocks, "INV-01", card.id)
    _require(dropping == card.dropping_blocks, "INV-01", card.id)
    _require(claimed == card.claimed_blocks, "INV-01", card.id)
    _require(used <= card.total_blocks, "INV-01", card.id)
    busy = sum(slot.blocks for slot in card.slots if slot.turn is not None)
    _require(busy == card.busy_blocks, "INV-01", card.id)
    idle = [slot for slot in card.slots if slot.state in (HELD, STORING) and slot.turn is None]
    _require(len(card.idle) == len(idle), "INV-04", card.id)
    unused = [slot.id for slot in card.slots if slot.state == FREE and slot.turn is None]
    _require(all(slot in card.free for slot in unused), "INV-04", card.id)
    running = sum(1 for slot in card.slots if slot.turn is not None)
    _require(running == card.running <= max(card.running_max, 0), "INV-04", card.id)
    fresh = [slot.turn.fresh_tokens for slot in card.slots if slot.turn is not None]
    _require(sum(fresh) == card.prompt_tokens, "INV-04", card.id)
    _require(sum(1 for tokens in fresh if tokens) == card.prompts, "INV-04", card.id)
    probing = [slot for slot in card.slots if slot.turn is not None and slot.turn.id == card.probe]
    _require(len(probing) == (1 if card.probe else 0), "INV-21", card.id)
    _require(not card.probe or card.breaker == BREAKER_HALF, "INV-21", card.id)
    for slot in card.slots:
        _slot(slot)


def _slot(slot: Slot) -> None:
    name = f"{slot.card.id}/{slot.id}"
    known = (FREE, CLAIMED, LOADING, RUNNING, HELD, STORING, DROPPING, BROKEN)
    _require(slot.state in known, "INV-04", name)
    keeps = slot.state in (CLAIMED, LOADING, RUNNING, HELD, STORING)
    _require(keeps == (slot.branch is not None), "INV-04", name)
    if slot.branch is not None:
        _require(slot.branch.slot is slot, "INV-02", name)
    if slot.state == FREE:
        _require(slot.blocks == 0, "INV-01", name)
    if slot.state in (LOADING, RUNNING):
        _require(slot.turn is not None and slot.turn.slot is slot, "INV-03", name)
    if slot.state == HELD and not slot.dirty and slot.card.kv == "full":
        _require(slot.branch is not None and slot.branch.entry is not None, "INV-02", name)


def _turn(turn: Turn) -> None:
    known = (BEHIND, QUEUED, READY, PLACED, LOADING, RUNNING)
    _require(turn.state in known, "INV-03", turn.id)
    _require((turn.slot is None) == (turn.state in WAITING), "INV-03", turn.id)
    first = turn.branch.turns[0]
    _require(first is turn or turn.state == BEHIND, "INV-03", turn.id)
    _require((turn.load is not None) <= (turn.state in (PLACED, LOADING)), "INV-06", turn.id)
    if turn.load is not None:
        _require(turn.load.tenant is turn.branch.session.tenant, "INV-07", turn.id)
        _require(turn.load.refs > 0, "INV-06", turn.id)


def _group(state: State, group: Group) -> None:
    _require(group.running == sum(card.running for card in group.cards), "INV-04", group.model)
    waiting = [turn for line in group.queues for queue in line.values() for turn in queue]
    queued = [turn for line in group.admit_queues for queue in line.values() for turn in queue]
    bound = [turn for card in group.cards for turn in card.bound.values()]
    in_lines = {turn.id: turn for turn in waiting + queued + bound}
    _require(len(in_lines) == len(waiting) + len(queued) + len(bound), "INV-03", group.model)
    for turn in state.turns.values():
        if turn.branch.group is group:
            _require((turn.id in in_lines) == (turn.state in (READY, QUEUED)), "INV-03", turn.id)
    reserved = sum(
        branch.reserved_tokens
        for session in state.sessions.values()
        for branch in session.branches.values()
        if branch.group is group
    )
    _require(reserved == group.admitted_tokens, "INV-10", group.model)


def _sessions(state: State) -> None:
    for tenant in state.tenants.values():
        own = [s for s in state.sessions.values() if s.tenant is tenant and not s.closing]
        _require(len(own) == tenant.sessions, "INV-03", tenant.id)
        resting = {s.id for s in own if s.open_turns == 0}
        _require(resting == set(tenant.resting), "INV-03", tenant.id)
    for session in state.sessions.values():
        turns = sum(len(branch.turns) for branch in session.branches.values())
        _require(turns == session.open_turns, "INV-03", session.id)
        mine = [turn for branch in session.branches.values() for turn in branch.turns]
        micro = sum(turn.budget_micro for turn in mine)
        _require(micro == session.reserved_micro, "INV-20", session.id)
        tokens = sum(turn.budget_tokens for turn in mine)
        _require(tokens == session.reserved_tokens, "INV-20", session.id)
        for branch in session.branches.values():
            entry = branch.entry
            if entry is not None:
                _require(entry.branch is branch and entry.state == STORED, "INV-02", session.id)
                _require(entry.tenant is session.tenant, "INV-07", session.id)


def _pool(state: State) -> None:
    size = sum(entry.size_bytes for entry in state.entries.values())
    dropping = sum(e.size_bytes for e in state.entries.values() if e.state == DROPPING)
    _require(size == state.pool_bytes, "INV-05", "pool")
    _require(dropping == state.pool_dropping, "INV-05", "pool")
    listed = sum(len(lru) for lru in state.lru)
    owned = sum(1 for e in state.entries.values() if e.state == STORED and _kept(e))
    _require(listed == owned, "INV-05", "pool")
    refs = sum(1 for turn in state.turns.values() if turn.load is not None)
    refs += sum(
        1
        for session in state.sessions.values()
        for branch in session.branches.values()
        if branch.source is not None
    )
    for entry in state.entries.values():
        if entry.prefix is not None:
            _require(entry.branch is None and entry.prefix.entry is entry, "INV-02", "pool")
            named = entry.tenant.prefixes.get((entry.group.model, entry.prefix.id))
            _require(named is entry.prefix, "INV-07", "pool")
    _require(refs == sum(e.refs for e in state.entries.values()), "INV-06", "pool")


def _kept(entry: Entry) -> bool:
    return entry.branch is not None or entry.prefix is not None


def _tenants(state: State) -> None:
    for tenant in state.tenants.values():
        mine = [t for t in state.turns.values() if t.branch.session.tenant is tenant]
        calls = [call for call in state.calls.values() if call[0] == tenant.id]
        _require(tenant.inflight == len(mine) + len(calls), "INV-11", tenant.id)
        micro = sum(turn.budget_micro for turn in mine) + sum(call[4] for call in calls)
        _require(micro == tenant.reserved_micro, "INV-20", tenant.id)
        for prefix in tenant.prefixes.values():
            if prefix.entry is not None:
                _require(prefix.entry.tenant is tenant, "INV-07", tenant.id)
        for lane, name in enumerate(LANE_NAMES):
            waiting = sum(1 for t in mine if t.lane == lane and t.state in WAITING)
            _require(tenant.waiting[lane] == waiting, "INV-11", f"{tenant.id} {name}")
        size = sum(e.size_bytes for e in state.entries.values() if e.tenant is tenant)
        _require(size == tenant.pool_bytes, "INV-05", tenant.id)
        slots = [slot for card in state.cards.values() for slot in card.slots]
        own = [s for s in slots if s.branch is not None and s.branch.session.tenant is tenant]
        blocks = sum(s.blocks for s in own) + sum(t.claim_blocks for t in mine)
        _require(blocks == tenant.card_blocks, "INV-11", tenant.id)
        shelf = {id(s) for s in own if s.state in (HELD, STORING) and s.turn is None}
        _require(shelf == {id(s) for s in tenant.shelf.values()}, "INV-11", tenant.id)
        running = sum(1 for t in mine if t.state in (PLACED, LOADING, RUNNING))
        _require(running == tenant.running, "INV-11", tenant.id)
