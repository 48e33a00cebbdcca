"""Leases, and the rent that runs while a session holds KV.

A lease is a session's right to keep its KV on a card during a tool gap, until `lease_ns`. It is a
preference, never a lock: what is leased goes last, but it goes when running turns need the room.
Rent is an area: booked tokens × nanoseconds, on card and in the pool apart, charged to the branch
whose KV it is.
"""

from __future__ import annotations

from bedplate.core.states import Branch, Session

AREA_MAX = 1 << 62
"""Most token-nanoseconds of one usage row; more becomes several rows."""


def charge(branch: Branch, now_ns: int) -> None:
    """Add what the branch held since the last mark; call before what it holds changes."""
    past_ns = now_ns - branch.area_mark_ns
    assert past_ns >= 0
    branch.area_mark_ns = now_ns
    if branch.slot is not None:
        branch.area_card += past_ns * branch.slot.blocks * branch.slot.card.group.block_tokens
    if branch.entry is not None:
        branch.area_pool += past_ns * branch.entry.tokens


def take_area(branch: Branch, now_ns: int) -> tuple[int, int]:
    """Return and reset the (card, pool) token-nanoseconds since the last row of this branch."""
    charge(branch, now_ns)
    area = (branch.area_card, branch.area_pool)
    branch.area_card = 0
    branch.area_pool = 0
    return area


def expired(session: Session, now_ns: int) -> bool:
    """Tell whether the session's lease ran out; a session with a turn has no lease to lose."""
    return session.open_turns == 0 and session.lease_ns <= now_ns
