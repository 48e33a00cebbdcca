"""The numbered invariants of docs/invariants.md, checked over the whole state.

Core asserts each where it changes what the invariant is about; this module looks at everything at
once, for tests, for snapshots and after recovery. Cost: O(state).
"""

from __future__ import annotations

from bedplate.core.base import Base
from bedplate.core.card import open_to
from bedplate.core.group import Group
from bedplate.core.limits import LANE_NAMES
from bedplate.core.shares import Share
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
        _shares(state, group)
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


def _may_keep(turn: Turn, card: Card) -> bool:
    """Tell whether the turn that keeps a card is looked at: the first of its line, or bound."""
    if turn.kept is not card or turn.state != READY:
        return False
    line = turn.branch.group.queues[turn.lane].get(turn.branch.session.tenant.id)
    return turn.bound_to is not None or (line is not None and line[0] is turn)


def _shares(state: State, group: Group) -> None:
    common = [c for c in group.cards if c.up and not c.draining and c.slice is None]
    _require({c.id for c in common} == {c.id for c in group.cards if c.common}, "INV-13", "cards")
    for card in group.cards:
        turn = card.kept_for
        _require(turn is None or _may_keep(turn, card), "INV-13", card.id)
    _slices(state, group)
    blocks = sum(card.total_blocks for card in common)
    _require(blocks == group.common_blocks, "INV-13", group.model)
    parts = list(group.shares.values())
    for share in parts:
        _share(state, share, common)
    _require(sum(s.busy_blocks for s in parts) == group.busy_blocks, "INV-13", group.model)
    _require(sum(s.kept_blocks for s in parts) == group.kept_blocks, "INV-13", group.model)
    _require(sum(s.kept_tokens for s in parts) == group.kept_tokens, "INV-13", group.model)
    _require(sum(s.reserve_blocks for s in parts) == group.reserve_blocks, "INV-13", group.model)


def _slices(state: State, group: Group) -> None:
    now_ns = state.now_ns
    for card in group.cards:
        if card.slice is not None:
            _require(card.slice in state.policy.slices, "INV-15", card.id)
            _require(card.up and not card.draining, "INV-15", card.id)
            for turn in [*card.placed.values(), *card.bound.values()]:
                _require(open_to(card, turn), "INV-15", turn.id)
    short = 0
    for part in state.policy.slices:
        if part.model == group.model and part.from_ns <= now_ns < part.until_ns:
            have = sum(1 for card in group.cards if card.slice == part)
            _require(have <= part.cards, "INV-15", part.id)
            short += part.cards - have
    spare = [c for c in group.cards if c.up and not c.draining and c.slice is None]
    _require(not short or not spare, "INV-15", group.model)


def _share(state: State, share: Share, common: list[Card]) -> None:
    name = f"{share.tenant.id} in {share.group.model}"
    slots = [s for card in common for s in card.slots if s.branch and s.branch.share is share]
    placed = [t for card in common for t in card.placed.values() if t.branch.share is share]
    claims = sum(turn.claim_blocks for turn in placed)
    _require(sum(s.blocks for s in slots) + claims == share.held_blocks, "INV-13", name)
    busy = sum(slot.blocks for slot in slots if slot.turn is not None)
    _require(busy + claims == share.busy_blocks, "INV-13", name)
    mine = [turn for turn in state.turns.values() if turn.branch.share is share]
    _require(sum(1 for t in mine if t.state in WAITING) == share.waiting, "INV-13", name)
    reserved = sum(
        branch.reserved_tokens
        for session in state.sessions.values()
        for branch in session.branches.values()
        if branch.share is share
    )
    _require(reserved == share.admitted_tokens, "INV-13", name)
    protected = share.reserve_blocks - (0 if share.waiting else share.lend_blocks)
    _require(share.kept_blocks == max(0, protected - busy - claims), "INV-13", name)
    cards = [card for card in share.group.cards if card.slice is not None]
    own = sum(c.total_blocks for c in cards if c.slice and c.slice.tenant == share.tenant.id)
    _require(own * share.group.block_tokens == share.own_tokens, "INV-13", name)
    tokens = (protected + own) * share.group.block_tokens - reserved
    _require(share.kept_tokens == max(0, tokens), "INV-13", name)


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
    mine = sum(len(lru) for tenant in state.tenants.values() for lru in tenant.lru)
    _require(listed == mine, "INV-05", "pool")
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
        busy = sum(s.blocks for s in own if s.turn is not None)
        busy += sum(turn.claim_blocks for turn in mine)
        _require(busy == tenant.busy_blocks, "INV-11", tenant.id)
        shelf = {id(s) for s in own if s.state in (HELD, STORING) and s.turn is None}
        _require(shelf == {id(s) for s in tenant.shelf.values()}, "INV-11", tenant.id)
        running = sum(1 for t in mine if t.state in (PLACED, LOADING, RUNNING))
        _require(running == tenant.running, "INV-11", tenant.id)
