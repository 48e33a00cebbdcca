"""The pool ledger: entries, their owners, and bytes. Which entry goes is `retention`'s choice.

Bytes of an entry count from the StoreKv that makes it to the EntryDropped that ends it, so the
pool's cap holds at every moment (INV-05). Forks share an entry by reference; it goes when its
branch has moved on and the last reference is given back. An entry of an opening (`prefixes`) has no
branch; its tenant is charged for it once, however many sessions load it.
"""

from __future__ import annotations

from bedplate.core.actions import DropEntry
from bedplate.core.ids import EntryId
from bedplate.core.lease import charge, end_prefix_rent
from bedplate.core.state import State
from bedplate.core.states import DROPPING, HELD, STORED, STORING, Branch, Entry


def new_entry(state: State, branch: Branch, tokens: int, size_bytes: int) -> Entry:
    """Open the books of a store that begins now."""
    entry = Entry(EntryId(state.next_entry), branch, tokens, size_bytes)
    state.next_entry += 1
    state.entries[entry.id] = entry
    state.pool_bytes += size_bytes
    entry.tenant.pool_bytes += size_bytes
    assert state.pool_bytes <= state.policy.pool_bytes_max
    return entry


def stored(state: State, entry: Entry, tokens: int, size_bytes: int) -> None:
    """The pool has the entry.

    Put the measured size in the books and learn bytes per token from it.
    """
    assert entry.state == STORING
    state.pool_bytes += size_bytes - entry.size_bytes
    entry.tenant.pool_bytes += size_bytes - entry.size_bytes
    whole = entry.shared_tokens == entry.tokens
    entry.shared_tokens = tokens if whole else min(entry.shared_tokens, tokens)
    entry.tokens = tokens
    entry.size_bytes = size_bytes
    entry.state = STORED
    group = entry.group
    if tokens and size_bytes > group.bytes_per_token * tokens:
        group.bytes_per_token = -(-size_bytes // tokens)


def give(state: State, branch: Branch, entry: Entry) -> None:
    """Make the entry its branch's pool copy; the copy before it goes."""
    assert entry.state == STORED
    release(state, branch)
    charge(branch, state.now_ns)
    branch.entry = entry
    offer(state, entry)


def offer(state: State, entry: Entry) -> None:
    """List a copy as the latest of its lane that may go for others, of all and of its tenant."""
    state.lru[entry.lane][entry.id] = entry
    entry.tenant.lru[entry.lane][entry.id] = entry


def share(parent: Branch, fork: Branch) -> None:
    """Pin the parent's pool copy, if it has one, for a fork that will start from it."""
    entry = parent.entry
    if entry is None or entry.state != STORED:
        return
    assert entry.tenant is fork.session.tenant
    fork.source = entry
    fork.source_tokens = entry.shared_tokens
    pin(entry)


def pin(entry: Entry) -> None:
    """Take a reference: the entry stays until `unpin`."""
    assert entry.state == STORED
    entry.refs += 1


def unpin(state: State, entry: Entry) -> None:
    """Give back one reference; an entry that nobody needs any more goes."""
    assert entry.refs > 0
    entry.refs -= 1
    kept = entry.branch is not None or entry.prefix is not None
    if entry.refs == 0 and not kept and entry.state == STORED:
        drop(state, entry)


def release(state: State, branch: Branch) -> None:
    """Part a branch from its pool copy, which goes at once unless a fork still needs it."""
    entry = branch.entry
    if entry is None:
        return
    part(state, entry)
    if entry.refs == 0:
        drop(state, entry)


def part(state: State, entry: Entry) -> None:
    """Take the entry away from what it copies without deleting it; a slot becomes dirty again."""
    state.lru[entry.lane].pop(entry.id, None)
    entry.tenant.lru[entry.lane].pop(entry.id, None)
    prefix = entry.prefix
    if prefix is not None:
        assert prefix.entry is entry
        end_prefix_rent(state, entry, prefix)
        prefix.entry = entry.prefix = None
    branch = entry.branch
    entry.branch = None
    if branch is not None and branch.entry is entry:
        charge(branch, state.now_ns)
        branch.entry = None
        if branch.slot is not None and branch.slot.state == HELD:
            branch.slot.dirty = True


def drop(state: State, entry: Entry) -> None:
    """Delete an entry; its bytes are free once the pool acknowledges."""
    assert entry.refs == 0
    assert entry.state != DROPPING
    part(state, entry)
    entry.state = DROPPING
    state.pool_dropping += entry.size_bytes
    entry.tenant.pool_dropping += entry.size_bytes
    state.emit(DropEntry(entry.id))


def forget(state: State, entry: Entry) -> None:
    """Take an entry out of the books: the pool no longer has it, or never had."""
    assert entry.refs == 0
    part(state, entry)
    if entry.state == DROPPING:
        state.pool_dropping -= entry.size_bytes
        entry.tenant.pool_dropping -= entry.size_bytes
    state.pool_bytes -= entry.size_bytes
    entry.tenant.pool_bytes -= entry.size_bytes
    assert state.pool_bytes >= 0
    assert entry.tenant.pool_bytes >= 0
    del state.entries[entry.id]
