"""Leases, and the rent that runs while a session holds KV.

A lease is a session's right to keep its KV on a card during a tool gap, until `lease_ns`. It is a
preference, never a lock: what is leased goes last, but it goes when running turns need the room.
How long it lasts is a bet on the tool's end against the price of room; a client that says how long
its tool takes (`ToolProgress`) is believed, within its lane's idle time.
Rent is an area: booked tokens × nanoseconds, on card and in the pool apart, charged to the branch
whose KV it is. That of an opening that sessions share goes to the turns that begin with it, in
turn, and what is left at its end to a row of the tenant.
"""

from __future__ import annotations

from typing import Final

from bedplate.core import budget
from bedplate.core.actions import Settled
from bedplate.core.events import ToolProgress
from bedplate.core.ids import BranchId, ModelId, SessionId, TenantId, TurnId
from bedplate.core.limits import BATCH
from bedplate.core.prefix import Prefix
from bedplate.core.returns import known
from bedplate.core.state import State
from bedplate.core.states import STORED, Branch, Entry, Session
from bedplate.core.tools import RATE_BITS

DENSITY_BITS: Final = 10
"""A density is in ns / 2^SLOPE_BITS × rate / 2^DENSITY_BITS, so that it stays a small integer."""
AREA_MAX = 1 << 62
"""Most token-nanoseconds of one usage row; more becomes several rows."""
RENT = Settled(
    turn=TurnId(""),
    session=SessionId(""),
    branch=BranchId(0),
    tenant=TenantId(""),
    lane=0,
    model=ModelId(""),
    card="",
    status="closed",
    prompt_tokens=0,
    cached_tokens=0,
    out_tokens=0,
    queue_ns=0,
    slot_ns=0,
    tool_ns=0,
    kv_card_token_ns=0,
    kv_pool_token_ns=0,
    attempts=0,
    exact=True,
)
"""The usage row of KV that was held outside any turn; whose and how much is put in."""


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


def take_prefix_area(prefix: Prefix, now_ns: int, *, most: int) -> int:
    """Return the token-nanoseconds of an opening's copy that no row has yet, at most `most`."""
    entry = prefix.entry
    if entry is not None and entry.state == STORED:
        assert prefix.mark_ns <= now_ns
        prefix.area_pool += (now_ns - prefix.mark_ns) * entry.tokens
    prefix.mark_ns = now_ns
    area = min(prefix.area_pool, most)
    prefix.area_pool -= area
    return area


def end_prefix_rent(state: State, entry: Entry, prefix: Prefix) -> None:
    """Meter what an opening's copy was kept for since the last turn that began with it."""
    while area := take_prefix_area(prefix, state.now_ns, most=AREA_MAX):
        row = RENT._replace(
            tenant=entry.tenant.id, lane=entry.lane, model=prefix.model, kv_pool_token_ns=area
        )
        budget.meter(state, entry.tenant, None, row)


def length_ns(state: State, branch: Branch) -> int:
    """Return how long KV of a branch whose turn has ended is protected on its card.

    As long as its return is worth more than the room, by the price that others paid for room
    lately; no longer than getting it back is worth (`worth_ns`); and no longer than the lane
    allows. Cost: O(1), amortised, and O(buckets) where room has a price.
    """
    most_ns = state.policy.lanes[branch.session.lane].lease_ns
    rate = _least_rate(state, branch)
    if rate == 0:
        return most_ns
    hold_ns = min(most_ns, worth_ns(rate))
    gaps = known(state, branch)
    return hold_ns if gaps is None else min(hold_ns, gaps.hold_ns(rate))


def worth_ns(rate: int) -> int:
    """Return how long the rent of a token adds up to what getting it back costs ("ski rental").

    Who holds for so long, and not longer, pays at most twice what one pays who knows the end.
    """
    return (1 << RATE_BITS) // rate


def _least_rate(state: State, branch: Branch) -> int:
    """Return how fast a branch must come back to be worth its room; 0 when room costs nothing."""
    costs = branch.group.costs
    price = costs.price_at(state.now_ns)
    cost = costs.compute()
    if state.policy.pool_bytes_max and branch.slot is not None:
        cost = min(cost, costs.load(branch.slot.tokens))
    return (price << DENSITY_BITS) // (cost << (BATCH - branch.session.lane))


def progress(state: State, event: ToolProgress) -> None:
    """Believe a client for how long the tool of an idle branch still runs: no estimate is needed.

    The lease lasts until then, within the lane's idle time, where that is worth the room; else
    there is none, since it would be paid in vain.
    """
    session = state.sessions.get(event.session)
    branch = _idle_branch(session, event.branch) if session is not None else None
    if session is None or branch is None:
        state.count("stale_events")
        return
    state.count("tool_progress")
    if event.eta_ns <= 0:
        branch.eta_ns = 0
        return
    eta_ns = min(event.eta_ns, state.policy.lanes[session.lane].idle_max_ns)
    branch.eta_ns = state.now_ns + eta_ns
    if session.open_turns == 0:
        rate = _least_rate(state, branch)
        pays = rate == 0 or eta_ns <= worth_ns(rate)
        session.lease_ns = branch.eta_ns if pays else state.now_ns
        state.stir(branch.group)


def _idle_branch(session: Session, number: int) -> Branch | None:
    """Return a branch that has no turn; for −1 the one whose turn ended last."""
    if number >= 0:
        found = session.branches.get(BranchId(number))
        return found if found is not None and not found.turns else None
    idle = [branch for branch in session.branches.values() if branch.ended_ns and not branch.turns]
    return max(idle, key=lambda branch: (branch.ended_ns, branch.id), default=None)


def expired(session: Session, now_ns: int) -> bool:
    """Tell whether the session's lease ran out; a session with a turn has no lease to lose."""
    return session.open_turns == 0 and session.lease_ns <= now_ns
