"""How a turn ends: stopped, lost, refused or done; its usage row; its branch free for the next."""

from __future__ import annotations

from typing import Final

from bedplate.core import admission, budget, demand, fairness, pool, ready, shares, tenant
from bedplate.core import lane as line
from bedplate.core import retry as resend
from bedplate.core.actions import CancelTurn, FailTurn, Refuse, Settled
from bedplate.core.dispatch import leave_slot
from bedplate.core.events import GOOD_ENDS
from bedplate.core.group import Group
from bedplate.core.lease import AREA_MAX, RENT, take_area, take_prefix_area
from bedplate.core.limits import DISPATCH_ATTEMPTS_MAX, NO_ENGINE_RETRY_NS
from bedplate.core.state import State
from bedplate.core.states import (
    BEHIND,
    FREE,
    HELD,
    LOADING,
    PLACED,
    QUEUED,
    READY,
    RUNNING,
    STORING,
    WAITING,
    Branch,
    Session,
    Turn,
)

CLIENTS_DOING: Final = ("client_cancelled", "deadline_exceeded", "session_not_found")
"""Ends that only a client brings about: it left, its time is over, it closed the session.

Such a turn pays for what was computed, else an answer cut before its last token would be free.
"""


def leave_line(state: State, turn: Turn) -> None:
    """Take a waiting turn out of whatever line it stands in."""
    assert turn.state in WAITING
    if turn.state == READY:
        ready.dequeue(turn)
    elif turn.state == QUEUED:
        line.remove(turn.branch.group.admit_queues, turn)
    shares.wait(turn, -1)


def end_turn(state: State, turn: Turn, status: str, *, cached_tokens: int = 0) -> None:
    """Settle a turn that is in no line and on no slot, and let its branch go on.

    `turn.prompt_tokens`, `turn.out_tokens` and `turn.exact` are what is metered.
    """
    assert turn.slot is None
    assert state.turns[turn.id] is turn
    branch = turn.branch
    session = branch.session
    if turn.attempt == 0:
        turn.queue_ns = state.now_ns - turn.arrived_ns
    area_card, area_pool = take_rent(state, branch)
    if turn.prefix is not None:
        area_pool += take_prefix_area(turn.prefix, state.now_ns, most=AREA_MAX - area_pool)
    budget.release(turn)
    budget.meter(
        state,
        session.tenant,
        session,
        Settled(
            turn.id,
            session.id,
            branch.id,
            session.tenant.id,
            turn.lane,
            branch.group.model,
            turn.card,
            status,
            turn.prompt_tokens if turn.attempt else 0,
            cached_tokens,
            turn.out_tokens,
            turn.queue_ns,
            turn.slot_ns,
            turn.tool_ns,
            area_card,
            area_pool,
            turn.attempt,
            turn.exact,
        ),
    )
    state.count(f"turns_{status}")
    fairness.charge_end(turn, cached_tokens=cached_tokens, area_card=area_card)
    if turn.attempt:
        demand.note_ended(branch.group, turn.slot_ns)
    used = (turn.prompt_tokens if turn.attempt else 0) + turn.out_tokens
    tenant.settle(session.tenant, turn, used)
    del state.turns[turn.id]
    branch.group.yielding.pop(turn.id, None)
    if turn.line_tokens >= 0 and status not in GOOD_ENDS:
        _forget_line(branch, turn.line_tokens)
    branch.turns.remove(turn)
    if turn.state in WAITING or not branch.turns:
        branch.ended_ns = state.now_ns
    session.open_turns -= 1
    assert session.open_turns >= 0
    lane = state.policy.lanes[session.lane]
    session.lease_ns = state.now_ns + state.rules.lease(state, branch)
    session.expires_ns = state.now_ns + lane.idle_max_ns
    if session.expires_ns < session.idle_ns:  # its lane now, or the policy, is less patient
        watch_idle(state, session, session.expires_ns)
    if not branch.turns:
        admission.rest_branch(session, branch)
    if session.open_turns == 0:
        admission.rest(session)
        if not session.closing:
            session.tenant.resting[session.id] = session
    state.stir(branch.group)
    next_turn(state, branch)


def _forget_line(branch: Branch, tokens: int) -> None:
    """A turn that left KV behind never ended well: the branch's line is as before it.

    What is held of the branch shares with that only what the turn had reused of it.
    """
    slot = branch.slot
    if slot is not None:
        slot.shared_tokens = min(slot.shared_tokens, tokens)
        if slot.entry is not None:
            slot.entry.shared_tokens = min(slot.entry.shared_tokens, tokens)
    if branch.entry is not None:
        branch.entry.shared_tokens = min(branch.entry.shared_tokens, tokens)


def watch_idle(state: State, session: Session, due_ns: int) -> None:
    """Look at a session again at `due_ns`: it may have been silent for too long then."""
    session.idle_ns = due_ns
    state.push_deadline(due_ns, "idle", session.id)


def take_rent(state: State, branch: Branch) -> tuple[int, int]:
    """Return what the branch held on card and in the pool since its last row, to go into a row.

    What one row cannot hold (a session that idled for weeks) goes into rows of its own before.
    """
    area_card, area_pool = take_area(branch, state.now_ns)
    while area_card > AREA_MAX or area_pool > AREA_MAX:
        part_card, part_pool = min(area_card, AREA_MAX), min(area_pool, AREA_MAX)
        area_card -= part_card
        area_pool -= part_pool
        session = branch.session
        row = rent_row(branch, part_card, part_pool, gap_ns=0)
        budget.meter(state, session.tenant, session, row)
    return area_card, area_pool


def rent_row(branch: Branch, area_card: int, area_pool: int, *, gap_ns: int) -> Settled:
    """Return a row of KV that was held outside any turn."""
    session = branch.session
    return RENT._replace(
        session=session.id,
        branch=branch.id,
        tenant=session.tenant.id,
        lane=session.lane,
        model=branch.group.model,
        tool_ns=gap_ns,
        kv_card_token_ns=area_card,
        kv_pool_token_ns=area_pool,
    )


def next_turn(state: State, branch: Branch) -> None:
    """Let the first turn of a branch ask for admission unless its KV is just being stored."""
    if not branch.turns or branch.session.closing:
        return
    turn = branch.turns[0]
    if turn.state != BEHIND:
        return
    slot = branch.slot
    if branch.awaits is not None or (slot is not None and slot.state == STORING):
        turn.why = "store_in_flight"
        return
    assert slot is None or slot.state == HELD
    branch.group.yielding.pop(turn.id, None)
    admission.request(state, turn)


def store_over(state: State, branch: Branch) -> None:
    """Let a branch go on whose store ended, well or not, and the forks that waited for its copy.

    Cost: O(branches of the session).
    """
    next_turn(state, branch)
    for fork in branch.session.branches.values():
        if fork.awaits is branch:
            fork.awaits = None
            if fork.turns:
                pool.share(branch, fork)
                next_turn(state, fork)


def wait_ends_ns(state: State, turn: Turn) -> int:
    """Return when a turn has waited for as long as its lane allows.

    For a card to come back, where none that serves its model is up, it waits no longer than a new
    session would for its first card.
    """
    lane = state.policy.lanes[turn.lane]
    due_ns = turn.since_ns + lane.wait_max_ns
    lost_ns = turn.branch.group.lost_ns
    if not lost_ns or not lane.refuse_ns:
        return due_ns
    return min(due_ns, max(turn.since_ns, lost_ns) + lane.refuse_ns)


def await_return(state: State, group: Group) -> None:
    """Look again at what waits for a group that has lost its last card. Cost: O(open turns).

    At once at what has waited for long enough: what is due in this step is looked at after this.
    """
    assert group.lost_ns
    for turn in state.turns.values():
        if turn.branch.group is group and turn.state in WAITING:
            due_ns = max(state.now_ns, wait_ends_ns(state, turn))
            state.push_deadline(due_ns, "wait", turn.id)


def give_up(state: State, turn: Turn, detail: str) -> None:
    """End a turn that waited too long: refused if it never ran, failed if it did."""
    leave_line(state, turn)
    group = turn.branch.group
    if group.lost_ns:
        detail = f"no card that serves {group.model} is up"
    if turn.attempt:
        code = "lane_full" if turn.attempt == turn.yields else "engine_lost"  # or nothing was lost
        lose(state, turn, "no_engine" if group.lost_ns else code, detail)
        return
    if group.lost_ns:
        state.emit(Refuse(turn.id, "no_engine", detail, NO_ENGINE_RETRY_NS))
    else:
        retry_ns = state.policy.lanes[turn.lane].wait_max_ns // 4
        state.emit(Refuse(turn.id, "lane_full", detail, retry_ns))
    end_turn(state, turn, "refused")


def fail_turn(
    state: State, turn: Turn, reason: str, detail: str, *, cached_tokens: int = 0
) -> None:
    """End a turn that is on no slot with an error that its client is told."""
    state.emit(FailTurn(turn.id, reason, detail))
    end_turn(state, turn, status_of(reason), cached_tokens=cached_tokens)


def status_of(reason: str) -> str:
    """Return the status of a turn that was ended for a reason: its client's doing, or ours."""
    return "cancelled" if reason in CLIENTS_DOING else "error"


def retry(state: State, turn: Turn, code: str, detail: str) -> None:
    """Let a turn that lost its card wait for another, or end it when it may not run again."""
    tries = turn.attempt - turn.yields
    again = tries < DISPATCH_ATTEMPTS_MAX and (turn.out_tokens == 0 or turn.resumable)
    if turn.end_reason or not again or state.shutting_down:
        lose(state, turn, code, detail)
        return
    sent = turn.state == RUNNING and code not in resend.BUSY
    if sent and not resend.take(state, turn):
        lose(state, turn, "retry_budget_spent", detail)
        return
    state.count("failovers")
    requeue(state, turn)


def requeue(state: State, turn: Turn) -> None:
    """Let a turn that is on no slot any more wait again, in its old place by arrival."""
    turn.state = BEHIND
    turn.since_ns = state.now_ns
    shares.wait(turn, 1)
    state.push_deadline(turn.since_ns + state.policy.lanes[turn.lane].wait_max_ns, "wait", turn.id)
    next_turn(state, turn.branch)


def lose(state: State, turn: Turn, code: str, detail: str) -> None:
    """End a turn that has no slot: with the reason it was being ended for, else with `code`."""
    if turn.attempt:
        turn.exact = False
    cached_tokens = 0
    if turn.told is not None:
        turn.prompt_tokens, cached_tokens = turn.told
    if turn.end_reason == "client_cancelled":
        end_turn(state, turn, "cancelled", cached_tokens=cached_tokens)
    else:
        reason, text = (turn.end_reason or code), (turn.end_detail or detail)
        fail_turn(state, turn, reason, text, cached_tokens=cached_tokens)


def stop(state: State, turn: Turn, reason: str, detail: str) -> None:
    """End a turn for `reason` (client_cancelled, or the code that its client is told)."""
    if turn.end_reason:
        return
    turn.end_reason = reason
    turn.end_detail = detail
    if turn.state == RUNNING:
        state.emit(CancelTurn(turn.id, turn.attempt))
        return
    if turn.state == LOADING:
        return
    if turn.state in WAITING:
        leave_line(state, turn)
    else:
        assert turn.state == PLACED
        _leave_placed(state, turn)
    lose(state, turn, reason, detail)


def _leave_placed(state: State, turn: Turn) -> None:
    slot = leave_slot(state, turn)
    assert slot.state != RUNNING
    if slot.state == HELD and slot.branch is turn.branch:
        state.loose.append(slot)
    assert slot.state != FREE or slot.blocks == 0
