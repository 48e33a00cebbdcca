"""Which sessions may use KV at all.

A session is admitted whole, with what its next turn may grow to.

The room of a group is the blocks of its cards that are up plus what the pool holds, in tokens. A
session is admitted when the reservations of all admitted sessions and its own fit under its lane's
share of the room; its later turns and branches grow the reservation without asking again, so an
admitted session never waits for admission twice. An idle session makes room for one that waits when
its lease ran out, or when the other has waited for `ADMIT_PATIENCE_NS`, for it may never return.
Where no pool keeps its KV it is spared before, while its return is worth more than computing that
again. It keeps its KV while there is space, and asks again when it returns. A session is always
admitted when no other is, so that one larger than its lane's share can run.

What is kept of a tenant's reserve counts as admitted for all others. A session within its tenant's
reserve is always admitted, and those of tenants above theirs step back for it at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from bedplate.core import fairness, shares
from bedplate.core import lane as line
from bedplate.core.eviction import yield_room
from bedplate.core.group import Group
from bedplate.core.lease import expired
from bedplate.core.limits import ADMIT_PATIENCE_NS, RELEASE_SCAN_MAX
from bedplate.core.ready import enqueue
from bedplate.core.returns import known
from bedplate.core.shares import Share
from bedplate.core.state import State
from bedplate.core.states import QUEUED, Branch, Session, Turn
from bedplate.core.tools import RATE_BITS

LEASES_SCAN_MAX = 16
"""Leased idle sessions of a lane that are looked past for one whose lease ran out."""


def request(state: State, turn: Turn) -> None:
    """Let the first waiting turn of a branch on: ready if its session is admitted, else queued.

    A tenant begins to wait in a lane of a group with the first of its turns that stands in line
    there; those behind others of their branch, and those for another model, ask for nothing here.
    """
    session = turn.branch.session
    group, payer = turn.branch.group, session.tenant.id
    if payer not in group.queues[turn.lane] and payer not in group.admit_queues[turn.lane]:
        fairness.lift(group, turn)
    if session.admitted:
        reserve(turn.branch, turn.prompt_tokens + turn.limit_tokens)
        enqueue(state, turn)
        return
    turn.state = QUEUED
    turn.why = "admission"
    turn.rank = state.rules.rank(state, turn)
    line.push(group.admit_queues, turn)
    state.stir(group)


def reserve(branch: Branch, tokens: int) -> None:
    """Set the branch's part of its session's reservation."""
    assert branch.session.admitted
    assert tokens >= 0
    shares.admit(branch.share, tokens - branch.reserved_tokens)
    branch.reserved_tokens = tokens
    assert branch.group.admitted_tokens >= 0


def admit(state: State, group: Group) -> None:
    """Admit waiting sessions in order while they fit; one within a reserve may pass others.

    Cost: O(1) while none waits; else RELEASE_SCAN_MAX sessions at most, and the idle ones that
    could step back for them.
    """
    for _ in range(RELEASE_SCAN_MAX):
        if line.empty(group.admit_queues):
            return
        turn = _next(state, group)
        if turn is None:
            return
        line.remove(group.admit_queues, turn)
        _enter(state, turn)


def _next(state: State, group: Group) -> Turn | None:
    """Return the next turn whose session is admitted now."""
    first: Turn | None = None
    heads = line.heads(state, group, group.admit_queues)
    for _, _, turn in islice(heads, RELEASE_SCAN_MAX if group.kept_tokens else 1):
        if first is None or _within(turn):
            if state.rules.fits(state, group, turn):
                return turn
            if first is None:
                first = turn
                _wake_later(state, group, turn)
    return None


def _within(turn: Turn) -> bool:
    """Tell whether the admitted sessions of the turn's tenant, this one too, are in its reserve."""
    share = turn.branch.share
    need = turn.prompt_tokens + turn.limit_tokens
    return share.admitted_tokens + need <= shares.entitled_tokens(share)


def _enter(state: State, turn: Turn) -> None:
    session = turn.branch.session
    if not session.admitted:
        session.admitted = True
        state.count("admitted")
        for branch in session.branches.values():
            reserve(branch, _held_tokens(branch))
    reserve(turn.branch, turn.prompt_tokens + turn.limit_tokens)
    enqueue(state, turn)


def _held_tokens(branch: Branch) -> int:
    on_card = branch.slot.tokens if branch.slot is not None else 0
    in_pool = branch.entry.tokens if branch.entry is not None else 0
    return max(on_card, in_pool)


def fits(state: State, group: Group, turn: Turn) -> bool:
    """Make idle sessions without a lease step back; tell whether the turn's session fits.

    What is kept of other tenants' reserves counts as taken. A session within its own tenant's
    reserve always fits.
    """
    session = turn.branch.session
    if session.admitted:
        return True
    need = turn.prompt_tokens + turn.limit_tokens
    share = turn.branch.share
    own = _within(turn)
    room = group.capacity_tokens * state.policy.lanes[turn.lane].admit_permille // 1000
    spoken = group.admitted_tokens + group.kept_tokens - share.kept_tokens
    if spoken + need <= room:
        return True
    need += spoken - room
    chosen: list[Session] = []
    for idle in _may_step_back(state, group, turn, hurry=own):
        if need <= 0:
            break
        freed = _may_free(group, idle, share)
        if freed:
            chosen.append(idle)
            need -= freed
    alone = sum(_reserved(group, idle) for idle in chosen) == group.admitted_tokens
    if need > 0 and not own and not alone:
        return False
    for idle in chosen:
        yield_room(state, group, idle)
        withdraw(state, idle)
        state.count("withdrawn")
    return True


def _may_free(group: Group, idle: Session, taker: Share) -> int:
    """Return how much room it makes when an idle session steps back; none below a reserve."""
    freed = _reserved(group, idle)
    share = group.shares[idle.tenant.id]
    reserve = shares.entitled_tokens(share)
    keeps = reserve and share is not taker and share.admitted_tokens - freed < reserve
    return 0 if keeps else freed


def _may_step_back(state: State, group: Group, turn: Turn, *, hurry: bool) -> Iterator[Session]:
    """Yield idle sessions in the order in which they make room for a waiting turn.

    For one in a hurry leases do not count.
    """
    waited = state.now_ns - turn.since_ns >= ADMIT_PATIENCE_NS
    for lane in (2, 1, 0):
        leased = 0
        for idle in group.idle[lane].values():
            goes = expired(idle, state.now_ns) or waited
            if hurry or (goes and _spared_ns(state, group, idle) <= state.now_ns):
                yield idle
                continue
            leased += 1
            if leased >= LEASES_SCAN_MAX:
                break


def _spared_ns(state: State, group: Group, idle: Session) -> int:
    """Return until when an idle session makes no room, whatever its lease and the others' wait.

    0 where a pool keeps its KV. Else as long as it is likely enough to return, by what is known of
    its tool, and at most as long as computing its KV again takes ("ski rental").
    """
    if state.policy.pool_bytes_max and group.bytes_per_token:
        return 0
    until_ns = 0
    for branch in idle.branches.values():
        if branch.group is group and branch.slot is not None:
            again_ns = ADMIT_PATIENCE_NS
            if group.costs.prefills.known():
                again_ns = group.costs.time_of(branch.slot.tokens)
            gaps = known(state, branch)
            if branch.eta_ns > branch.ended_ns + again_ns:
                again_ns = 0
            elif gaps is not None:
                again_ns = min(again_ns, gaps.hold_ns((1 << RATE_BITS) // max(1, again_ns)))
            until_ns = max(until_ns, branch.ended_ns + again_ns)
    return until_ns


def _reserved(group: Group, session: Session) -> int:
    return sum(b.reserved_tokens for b in session.branches.values() if b.group is group)


def withdraw(state: State, session: Session) -> None:
    """Take a session's admission back; it holds no reservation until it is admitted again."""
    if not session.admitted:
        return
    wake(session)
    for branch in session.branches.values():
        reserve(branch, 0)
        state.stir(branch.group)
    session.admitted = False


def rest_branch(session: Session, branch: Branch) -> None:
    """Note that a branch has no turn now; the one that rested before gives its reservation back.

    An agent that edits its history leaves a branch behind each time, and will not come back to it.
    """
    before, session.rested = session.rested, branch
    if before is not None and before is not branch and not before.turns and session.admitted:
        reserve(before, 0)


def rest(session: Session) -> None:
    """Note that an admitted session has no turn now.

    It goes last in line of those that may step back, in every group where it holds a reservation.
    """
    assert session.open_turns == 0
    if session.admitted:
        wake(session)
        for branch in session.branches.values():
            if branch.reserved_tokens:
                branch.group.idle[session.lane][session.id] = session


def wake(session: Session) -> None:
    """Note that a session has a turn again."""
    for branch in session.branches.values():
        branch.group.idle[session.lane].pop(session.id, None)


def _wake_later(state: State, group: Group, turn: Turn) -> None:
    """Look again when a lease runs out or patience does; ends of turns stir anyway."""
    due = [turn.since_ns + ADMIT_PATIENCE_NS]
    for idle in group.idle:
        for first in islice(idle.values(), LEASES_SCAN_MAX):
            due += [first.lease_ns, _spared_ns(state, group, first)]
    soonest = min((at_ns for at_ns in due if at_ns > state.now_ns), default=0)
    if soonest and group.wake_ns != soonest:
        group.wake_ns = soonest
        state.push_deadline(soonest, "admit", group.model)
