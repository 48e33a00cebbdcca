"""Events of turns: arrived, started, progress, ended, failed, cancelled, deadlines."""

from __future__ import annotations

from bedplate.core import (
    admission,
    breaker,
    budget,
    demand,
    door,
    prefixes,
    retry,
    returns,
    sessions,
    settle,
    shares,
    tenant,
)
from bedplate.core.actions import FailTurn, Refuse
from bedplate.core.card import commit
from bedplate.core.dispatch import leave_slot, run_deadline_ns, scrap_slot
from bedplate.core.events import (
    GOOD_ENDS,
    DispatchFailed,
    TokensEmitted,
    TurnArrived,
    TurnCancelled,
    TurnEnded,
    TurnStarted,
)
from bedplate.core.ids import TurnId
from bedplate.core.leaving import must_go, vacate
from bedplate.core.placement import untried
from bedplate.core.retention import hold, store_slot, writes_through
from bedplate.core.state import State
from bedplate.core.states import RUNNING, WAITING, Card, Slot, Turn
from bedplate.core.tools import NAME_LENGTH_MAX
from bedplate.core.units import SECOND_NS, blocks_for

TIMEOUT = "engine_timeout"


def arrived(state: State, event: TurnArrived) -> None:
    """Refuse a call at the door, or take it in and let it wait for its place."""
    assert event.turn not in state.turns, event.turn
    assert event.prompt_tokens >= 1
    assert 0 <= event.reuse_tokens <= event.prompt_tokens
    assert 0 <= event.prefix_tokens <= event.prompt_tokens
    payer = state.tenant(event.tenant)
    group = state.groups.get(event.model)
    refusal = door.refusal_of(state, event, payer, group)
    if refusal is not None:
        reason, detail, retry_ns = refusal
        state.count("refused")
        if reason == "lane_full" and event.session not in state.sessions:
            demand.turn_away(payer, event.session, state.now_ns)
        state.emit(Refuse(event.turn, reason, detail, retry_ns))
        return
    assert group is not None
    asked_ns = demand.asked_ns(payer, event.session, state.now_ns)
    demand.let_in(payer, event.session)
    event = door.fitted(event, payer, group)
    branch = sessions.branch_for(state, event, payer, group)
    session = branch.session
    turn = Turn(event.turn, branch, event.lane, state.now_ns)
    turn.serial = state.serial()
    turn.asked_ns = asked_ns
    turn.prompt_tokens = event.prompt_tokens
    turn.reuse_tokens = event.reuse_tokens
    turn.limit_tokens = door.limit_of(state, event, group)
    turn.resumable = event.resumable
    turn.exact = event.exact
    turn.prefix = prefixes.meet(state, event, payer, group)
    turn.tool_ns = state.now_ns - branch.ended_ns if branch.ended_ns else 0
    returns.came_back(state, branch)
    length = turn.prompt_tokens + turn.limit_tokens
    turn.need_blocks = blocks_for(length, state.policy.block_tokens)
    state.turns[turn.id] = turn
    state.count("accepted")
    tenant.take(payer, turn)
    budget.take(state, turn, max(turn.prompt_tokens, event.most_tokens))
    retry.earn(state, turn.prompt_tokens)
    shares.wait(turn, 1)
    admission.wake(session)
    payer.resting.pop(session.id, None)
    session.lane = event.lane
    session.open_turns += 1
    branch.turns.append(turn)
    turn.why = "behind"
    state.push_deadline(turn.since_ns + state.policy.lanes[turn.lane].wait_max_ns, "wait", turn.id)
    if branch.turns[0] is turn:
        settle.next_turn(state, branch)


def started(state: State, event: TurnStarted) -> None:
    """Compare what the engine found in its cache with core's books; the engine is right."""
    turn = _running(state, event.turn, event.attempt)
    if turn is None:
        return
    if turn.loaded:
        good = event.cached_tokens >= turn.expected_tokens
        state.count("loads_verified" if good else "loads_refuted")
        state.count("pool_saved_tokens", event.cached_tokens)
    elif event.cached_tokens < turn.expected_tokens:
        state.count("cache_refuted")
    if not turn.resumable:
        turn.branch.group.may_yield.pop(turn.id, None)
        turn.branch.group.yielding.pop(turn.id, None)
    turn.why = "decoding"
    assert turn.slot is not None
    breaker.spoke(turn.slot.card, turn.id)
    _prompt_done(state, turn, turn.slot.card, event.prompt_tokens - event.cached_tokens)


def _prompt_done(state: State, turn: Turn, card: Card, computed_tokens: int) -> None:
    """Learn the card's pace from a first token, and let the next prompt go there."""
    if turn.out_tokens == 0 and computed_tokens > 0:
        since_ns = max(turn.dispatched_ns, card.first_token_ns)
        card.group.costs.prefills.note(computed_tokens, state.now_ns - since_ns)
    card.first_token_ns = state.now_ns
    commit(state, turn, card, 0)


def emitted(state: State, event: TokensEmitted) -> None:
    """Note how far a running turn got."""
    turn = _running(state, event.turn, event.attempt)
    if turn is not None:
        turn.out_tokens = max(turn.out_tokens, event.out_tokens)


def ended(state: State, event: TurnEnded) -> None:
    """Take the engine's word for what was computed; keep or drop what it left on the card."""
    turn = _running(state, event.turn, event.attempt)
    if turn is None:
        return
    slot = leave_slot(state, turn)
    if event.status == "yielded" and not turn.end_reason:
        _yielded(state, turn, slot, event)
        return
    if event.status == "held" and turn.end_reason in ("", TIMEOUT):
        turn.end_reason, turn.end_detail = "deadline_exceeded", "its answer was read too slowly"
    blocks = blocks_for(event.kv_tokens, state.policy.block_tokens)
    if event.status in GOOD_ENDS:
        _leave_line(turn)
        breaker.worked(state, slot.card)
    elif event.status == "error" or (turn.end_reason == TIMEOUT and not state.journal_stalled):
        breaker.failed(state, slot.card, silent=turn.end_reason == TIMEOUT and not _spoke(turn))
    if _keeps(turn, event, slot) and blocks <= slot.blocks and state.rules.keeps(state, slot):
        slot.tokens = slot.shared_tokens = event.kv_tokens
        slot.dirty = True
        hold(state, slot, blocks)
        state.loose.append(slot)
    else:
        scrap_slot(state, slot)
    turn.prompt_tokens = event.prompt_tokens
    turn.out_tokens = event.out_tokens
    turn.exact = event.exact
    turn.branch.tool = event.tool[:NAME_LENGTH_MAX]
    state.count("prompt_tokens", event.prompt_tokens)
    state.count("cached_tokens", event.cached_tokens)
    state.count("out_tokens", event.out_tokens)
    status = event.status
    if status in GOOD_ENDS:
        turn.end_reason = ""  # it was done before it could be stopped
    if turn.end_reason:
        status = settle.status_of(turn.end_reason)
        if turn.end_reason != "client_cancelled":
            state.emit(FailTurn(turn.id, turn.end_reason, turn.end_detail))
    settle.end_turn(state, turn, status, cached_tokens=event.cached_tokens)


def _yielded(state: State, turn: Turn, slot: Slot, event: TurnEnded) -> None:
    """Let a turn that made way wait again, and store what it computed before anyone needs the room.

    Until the store is over it does not ask for a place, so that it cannot take its own back.
    """
    assert turn.id in turn.branch.group.yielding, "it was asked"
    state.count("yields")
    turn.yields += 1
    turn.out_tokens = max(turn.out_tokens, event.out_tokens)
    turn.told = (event.prompt_tokens, event.cached_tokens)
    blocks = blocks_for(event.kv_tokens, state.policy.block_tokens)
    if 0 < blocks <= slot.blocks and slot.card.kv == "full":
        _leave_line(turn)
        if turn.line_tokens < 0:
            turn.line_tokens = turn.reuse_tokens
        turn.reuse_tokens = max(turn.reuse_tokens, event.kv_tokens)
        slot.tokens = slot.shared_tokens = event.kv_tokens
        slot.dirty = True
        hold(state, slot, blocks)
        if must_go(slot):
            vacate(state, slot)
        elif writes_through(state, slot):
            store_slot(state, slot)
    else:
        scrap_slot(state, slot)
    settle.requeue(state, turn)


def _keeps(turn: Turn, event: TurnEnded, slot: Slot) -> bool:
    """Tell whether what the turn left on its card is the branch's line and worth keeping."""
    good = event.status in GOOD_ENDS and event.kv_tokens > 0
    return good and slot.card.kv != "none" and not turn.branch.session.closing


def _leave_line(turn: Turn) -> None:
    """The engine computed a new line for the branch.

    What was compared with the line before shares with the new one only what this turn reused: an
    older pool copy, and turns that arrived meanwhile.
    """
    branch = turn.branch
    if branch.entry is not None:
        branch.entry.shared_tokens = min(branch.entry.shared_tokens, turn.reuse_tokens)
    reused_tokens = turn.reuse_tokens if turn.line_tokens < 0 else turn.line_tokens
    for later in branch.turns:
        if later is not turn:
            later.reuse_tokens = min(later.reuse_tokens, reused_tokens)


def failed(state: State, event: DispatchFailed) -> None:
    """Run a turn elsewhere when nothing of it would be sent twice, else end it with the error.

    A card without room is not asked again for it: its client is told to come back.
    """
    turn = _running(state, event.turn, event.attempt)
    if turn is None:
        return
    turn.out_tokens = max(turn.out_tokens, event.out_tokens)
    ran_ns = state.now_ns - turn.dispatched_ns
    slot = leave_slot(state, turn)
    scrap_slot(state, slot)
    turn.failed_on = (*turn.failed_on, slot.card.id)
    if event.code in breaker.FAULTS:
        silent = event.code == TIMEOUT and not _spoke(turn)
        breaker.failed(state, slot.card, silent=silent)
    if event.code in retry.BUSY:
        again = untried(turn)
    else:
        again = not retry.in_vain(turn, slot.card, ran_ns)
    if event.retryable and again:
        settle.retry(state, turn, event.code, f"card {slot.card.id} failed")
    else:
        settle.lose(state, turn, event.code, f"card {slot.card.id} failed")


def _spoke(turn: Turn) -> bool:
    """Tell whether the running attempt gave a first token."""
    return turn.why == "decoding"


def cancelled(state: State, event: TurnCancelled) -> None:
    """Take back a turn wherever it is; a running one ends at its engine's next word."""
    turn = state.turns.get(event.turn)
    if turn is not None:
        reason = {"deadline": "deadline_exceeded", "shutdown": "draining"}.get(
            event.reason, "client_cancelled"
        )
        settle.stop(state, turn, reason, f"cancelled: {event.reason}")


def deadline(state: State, kind: str, subject: str) -> None:
    """Look at a turn whose wait or run may have lasted too long."""
    turn = state.turns.get(TurnId(subject))
    if turn is None:
        return
    if kind == "wait" and turn.state in WAITING:
        due_ns = settle.wait_ends_ns(state, turn)
        if due_ns > state.now_ns:
            state.push_deadline(due_ns, kind, subject)
        else:
            detail = f"waited {(state.now_ns - turn.since_ns) // SECOND_NS} s ({turn.why})"
            settle.give_up(state, turn, detail)
    elif kind == "run" and turn.state == RUNNING:
        due_ns = run_deadline_ns(state, turn)
        if due_ns > state.now_ns:
            state.push_deadline(due_ns, kind, subject)
        else:
            settle.stop(state, turn, TIMEOUT, "the engine did not end the turn in time")


def _running(state: State, turn_id: TurnId, attempt: int) -> Turn | None:
    """Return the turn if this word is about its running attempt; older ones are stale."""
    turn = state.turns.get(turn_id)
    if turn is None or turn.state != RUNNING or turn.attempt != attempt:
        state.count("stale_events")
        return None
    assert turn.slot is not None
    return turn
