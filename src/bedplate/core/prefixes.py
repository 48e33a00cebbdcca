"""Openings that sessions of one tenant have in common: a system prompt and its tools.

An engine names the opening of a prompt of which nothing is computed yet (`TurnArrived.prefix`).
Nothing is kept for the first session that begins with it. The first turn of a later one computes
the opening, copies it to the pool, and goes on (`Dispatch.prefix_entry`); those that follow load
the copy in place of computing it. The copy is of the opening alone, to the token: so it serves
engines that cannot cut KV back, and holds nothing that a client said in a session it has closed.

    named once ─► named again, and it pays ─► storing ─► stored ─► loaded ... ─► idle or evicted
                            ▲                    │ the run ended before
                            └────────────────────┘

The copy belongs to its tenant: its bytes are charged once, to that tenant's quota, and no other
tenant's turn can find it, whatever it is named (INV-07). It goes by value like other copies, and
once no session began with it for as long as the lane lets a silent session live.
"""

from __future__ import annotations

from bedplate.core import pool
from bedplate.core.events import TurnArrived
from bedplate.core.group import Group
from bedplate.core.ids import EntryId
from bedplate.core.prefix import Prefix
from bedplate.core.retention import NOW, make_pool_room
from bedplate.core.state import State
from bedplate.core.states import STORED, Entry, Slot, Tenant, Turn

PREFIXES_MAX = 64
"""Openings remembered of one tenant; beyond it the one that was longest unused is forgotten."""
TOKENS_MIN = 256
"""Shorter openings are computed each time: a load is hardly faster, and each costs a place here."""
SESSIONS_MIN = 2
"""Uses with which an opening is kept: most come once."""
GAP_SHIFT = 2
"""The mean time between two uses moves a quarter of the way to the last."""


def meet(state: State, event: TurnArrived, payer: Tenant, group: Group) -> Prefix | None:
    """Note that a turn begins with an opening; return it if others may share it.

    Cost: O(1), and O(PREFIXES_MAX) where one is forgotten.
    """
    if event.prefix_tokens < TOKENS_MIN or event.reuse_tokens:
        return None
    key = (group.model, event.prefix)
    prefix = payer.prefixes.pop(key, None)
    if prefix is None:
        if len(payer.prefixes) >= PREFIXES_MAX and not _forget_oldest(state, payer):
            return None
        prefix = Prefix(event.prefix, group.model, event.prefix_tokens)
    assert prefix.tokens == event.prefix_tokens, "equal names mean equal tokens"
    payer.prefixes[key] = prefix
    if prefix.uses:
        gap_ns = state.now_ns - prefix.used_ns
        prefix.gap_ns += (gap_ns - prefix.gap_ns) >> GAP_SHIFT if prefix.uses > 1 else gap_ns
    prefix.uses += 1
    prefix.used_ns = state.now_ns
    prefix.lane = event.lane
    return prefix


def _forget_oldest(state: State, tenant: Tenant) -> bool:
    """Forget the opening that was longest unused, with its copy if no load or store needs it."""
    for key, prefix in tenant.prefixes.items():
        entry = prefix.entry
        if entry is None or (entry.state == STORED and entry.refs == 0):
            if entry is not None:
                pool.drop(state, entry)
            del tenant.prefixes[key]
            return True
    return False


def shares(state: State, group: Group, prefix: Prefix) -> bool:
    """Tell whether a copy for the sessions that follow is worth the link's time, or unknown."""
    return group.costs.store_pays(prefix.tokens, state.now_ns)


def begin(state: State, turn: Turn) -> Entry | None:
    """Open the books of the copy that a turn makes on its way, if it should: it computes it now."""
    prefix, slot = turn.prefix, turn.slot
    assert slot is not None
    if prefix is None or prefix.entry is not None or prefix.uses < SESSIONS_MIN:
        return None
    tenant = turn.branch.session.tenant
    known = tenant.prefixes.get((prefix.model, prefix.id)) is prefix
    fresh = turn.expected_tokens == 0 and turn.out_tokens == 0 and slot.tokens == 0
    room = slot.card.kv == "full" and state.policy.pool_bytes_max > 0
    if not (known and fresh and room and prefix.tokens < turn.prompt_tokens):
        return None
    group = turn.branch.group
    size = prefix.tokens * group.bytes_per_token
    if not state.rules.shares(state, group, prefix) or make_pool_room(state, tenant, size) != NOW:
        return None
    entry = pool.new_entry(state, turn.branch, prefix.tokens, size)
    entry.branch = None
    entry.prefix = prefix
    prefix.entry = slot.entry = entry
    state.count("prefix_stores")
    return entry


def opening_of(turn: Turn) -> Entry | None:
    """Return the pool's copy of what a turn begins with, for a line that has none of its own."""
    entry = turn.prefix.entry if turn.prefix is not None else None
    if entry is None or entry.state != STORED:
        return None
    assert entry.tenant is turn.branch.session.tenant, "INV-07: no prefix across tenants"
    assert entry.group is turn.branch.group
    return entry


def stored(state: State, entry: Entry, tokens: int, size_bytes: int) -> None:
    """The pool has the copy: sessions that begin with it load it from now on."""
    prefix = entry.prefix
    assert prefix is not None
    pool.stored(state, entry, tokens, size_bytes)
    if tokens != prefix.tokens:
        pool.drop(state, entry)
        return
    prefix.mark_ns = state.now_ns
    pool.offer(state, entry)
    state.push_deadline(state.now_ns + _idle_ns(state, prefix), "prefix", str(entry.id))
    state.stir(entry.group)


def abandon(state: State, slot: Slot) -> None:
    """A run ended before its copy was there: what may still come of it is deleted."""
    entry, slot.entry = slot.entry, None
    assert entry is not None
    assert entry.prefix is not None
    pool.drop(state, entry)


def idle_deadline(state: State, subject: str) -> None:
    """Drop the copy of an opening that no session began with for long."""
    entry = state.entries.get(EntryId(int(subject)))
    if entry is None or entry.prefix is None or entry.state != STORED:
        return
    due_ns = entry.prefix.used_ns + _idle_ns(state, entry.prefix)
    if due_ns > state.now_ns:
        state.push_deadline(due_ns, "prefix", subject)
    elif entry.refs:
        state.push_deadline(state.now_ns + _idle_ns(state, entry.prefix), "prefix", subject)
    else:
        pool.drop(state, entry)


def _idle_ns(state: State, prefix: Prefix) -> int:
    return state.policy.lanes[prefix.lane].idle_max_ns
