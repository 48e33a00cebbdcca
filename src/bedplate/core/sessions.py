"""Sessions as trees: opened by their first turn, forked, idle, closed or expired."""

from __future__ import annotations

from bedplate.core import admission, budget, fairness, pool, returns, settle, shares
from bedplate.core.actions import SessionEnded
from bedplate.core.events import TurnArrived
from bedplate.core.group import Group
from bedplate.core.ids import BranchId, SessionId
from bedplate.core.limits import BRANCHES_MAX
from bedplate.core.retention import drop_slot
from bedplate.core.state import State
from bedplate.core.states import HELD, STORING, Branch, Session, Tenant


def branch_for(state: State, event: TurnArrived, payer: Tenant, group: Group) -> Branch:
    """Return the branch that the call belongs to, opening session and branch as needed."""
    session = state.sessions.get(event.session)
    if session is None:
        if crowded(state):
            victim = evictable(state, payer)
            assert victim is not None
            close(state, victim, "evicted")
        payer.sessions += 1
        serial = state.serial()
        session = Session(event.session, payer, group, state.now_ns, serial)
        session.lane = event.lane
        state.sessions[session.id] = session
        state.count("sessions_opened")
        idle_ns = state.policy.lanes[event.lane].idle_max_ns
        session.expires_ns = state.now_ns + idle_ns
        settle.watch_idle(state, session, session.expires_ns)
    branch = session.branches.get(event.branch)
    if branch is None:
        _forget_oldest(state, session, event.fork_of)
        share = shares.share_of(state, group, payer)
        branch = Branch(event.branch, session, share, state.now_ns)
        session.branches[branch.id] = branch
        _inherit(event, session, branch)
    return branch


def crowded(state: State) -> bool:
    """Tell whether one more session would be too many; those that are closing do not count."""
    return len(state.sessions) - len(state.closing) >= state.policy.sessions_max


def evictable(state: State, payer: Tenant) -> Session | None:
    """Return the session that makes room for one of `payer`, None if none has to.

    It is the longest idle one of the tenant that has the most, if that has more than the payer: so
    one tenant cannot keep the others out by opening sessions. Of several that have the most it is
    one that has an idle session. Cost: O(tenants).
    """
    most = max(state.tenants.values(), key=lambda tenant: (tenant.sessions, bool(tenant.resting)))
    if most.sessions <= payer.sessions:
        return None
    return next(iter(most.resting.values()), None)


def _inherit(event: TurnArrived, session: Session, branch: Branch) -> None:
    """Let a fork start from its parent's pool copy, once that is written if it is being written."""
    parent = session.branches.get(BranchId(event.fork_of))
    if parent is None or parent is branch or event.reuse_tokens == 0:
        return
    if parent.group is not branch.group:
        return
    if _storing(parent):
        branch.awaits = parent
    else:
        pool.share(parent, branch)


def full(session: Session, keep: int) -> bool:
    """Tell whether the session has no room for one more branch: all are busy but `keep`, if any."""
    return len(session.branches) >= BRANCHES_MAX and not _idle(session, keep)


def _idle(session: Session, keep: int) -> list[Branch]:
    branches = session.branches.values()
    return [b for b in branches if b.id != keep and not b.turns and not _storing(b)]


def _forget_oldest(state: State, session: Session, keep: int) -> None:
    if len(session.branches) < BRANCHES_MAX:
        return
    idle = _idle(session, keep)
    if idle:
        oldest = min(idle, key=lambda b: (b.ended_ns, b.id))
        _clear(state, oldest)
        if session.admitted:
            admission.reserve(oldest, 0)
        del session.branches[oldest.id]


def _storing(branch: Branch) -> bool:
    return branch.slot is not None and branch.slot.state == STORING


def close(state: State, session: Session, reason: str) -> None:
    """End a session: its turns are cancelled, its KV is dropped, then it is forgotten."""
    if session.closing:
        return
    session.closing = reason
    if reason == "expired":
        for branch in session.branches.values():
            returns.stayed_away(state, branch)
    session.tenant.sessions -= 1
    session.tenant.resting.pop(session.id, None)
    admission.withdraw(state, session)
    for branch in list(session.branches.values()):
        for turn in list(branch.turns)[::-1]:
            settle.stop(state, turn, "session_not_found", f"session {session.id} was closed")
    state.closing[session.id] = session


def finish_closing(state: State) -> None:
    """Forget each closing session once no turn, load or store of it is under way."""
    for session in list(state.closing.values()):
        if session.open_turns == 0 and _cleared(state, session):
            del state.closing[session.id]
            del state.sessions[session.id]
            state.count(f"sessions_{session.closing}")
            state.emit(SessionEnded(session.id, session.closing))


def _cleared(state: State, session: Session) -> bool:
    for branch in session.branches.values():
        _clear(state, branch)
    if any(_storing(branch) for branch in session.branches.values()):
        return False
    for branch in session.branches.values():
        assert branch.slot is None
        assert branch.entry is None
        assert branch.source is None
    return True


def _clear(state: State, branch: Branch) -> None:
    """Drop what a branch without turns keeps; a store under way is left to end first."""
    assert not branch.turns
    if _storing(branch):
        return
    _settle_rest(state, branch)
    if branch.slot is not None:
        assert branch.slot.state == HELD
        drop_slot(state, branch.slot)
    if branch.source is not None:
        source, branch.source = branch.source, None
        pool.unpin(state, source)
    pool.release(state, branch)


def _settle_rest(state: State, branch: Branch) -> None:
    """Meter the KV that was held since the branch's last turn."""
    area_card, area_pool = settle.take_rent(state, branch)
    if area_card or area_pool:
        fairness.charge_rest(branch, area_card)
        gap_ns = state.now_ns - branch.ended_ns if branch.ended_ns else 0
        row = settle.rent_row(branch, area_card, area_pool, gap_ns=gap_ns)
        budget.meter(state, branch.session.tenant, branch.session, row)


def idle_deadline(state: State, subject: str) -> None:
    """Close a session that was silent for longer than its lane allows."""
    session = state.sessions.get(SessionId(subject))
    if session is None or session.closing:
        return
    if session.open_turns:
        due_ns = state.now_ns + state.policy.lanes[session.lane].idle_max_ns
        settle.watch_idle(state, session, due_ns)
    elif session.expires_ns > state.now_ns:
        settle.watch_idle(state, session, session.expires_ns)
    else:
        close(state, session, "expired")
