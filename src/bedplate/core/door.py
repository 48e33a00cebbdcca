"""What a call is told before it is let in: its output limit, or why it is refused."""

from __future__ import annotations

from bedplate.core import breaker, budget, demand, sessions, tenant
from bedplate.core.events import TurnArrived
from bedplate.core.group import Group
from bedplate.core.limits import BRANCH_QUEUE_MAX, BRANCHES_MAX, LANE_NAMES, NO_ENGINE_RETRY_NS
from bedplate.core.state import State
from bedplate.core.states import Tenant
from bedplate.core.units import SECOND_NS


def fitted(event: TurnArrived, payer: Tenant, group: Group) -> TurnArrived:
    """Return the call with an estimate that fits: it may have, and then its engine knows better."""
    longest = _context_max(payer, group)
    if event.prompt_tokens < longest:
        return event
    assert event.least_tokens < longest
    fits = longest - 1
    return event._replace(prompt_tokens=fits, reuse_tokens=min(event.reuse_tokens, fits))


def limit_of(state: State, event: TurnArrived, group: Group) -> int:
    """Return how many tokens the call may produce."""
    wanted = event.limit_tokens or state.policy.lanes[event.lane].output_tokens
    room = _context_max(state.tenant(event.tenant), group) - event.prompt_tokens
    return min(wanted, room)


def _context_max(payer: Tenant, group: Group) -> int:
    policy = payer.policy
    longest = group.context_tokens
    if policy.session_tokens_max:
        longest = min(longest, policy.session_tokens_max)
    if policy.card_tokens_max:
        longest = min(longest, policy.card_tokens_max // group.block_tokens * group.block_tokens)
    return longest


def refusal_of(
    state: State, event: TurnArrived, payer: Tenant, group: Group | None
) -> tuple[str, str, int] | None:
    """Return (code, detail, retry after) of the first thing that forbids the call, or None."""
    if state.shutting_down:
        return ("draining", "the service is shutting down", 5 * SECOND_NS)
    if state.journal_stalled:
        return ("journal_error", "the journal cannot be written", 5 * SECOND_NS)
    if group is None or not any(card.up for card in group.cards):
        return ("no_engine", f"no card that serves {event.model} is up", NO_ENGINE_RETRY_NS)
    pause_ns = breaker.wait_ns(state, group)
    if pause_ns:
        detail = f"every card that serves {event.model} failed turns of late and is left alone"
        return ("no_engine", detail, pause_ns)
    longest = _context_max(payer, group)
    certain = event.least_tokens or event.prompt_tokens
    if certain + 1 > longest:
        word = "at least " if event.least_tokens else ""
        detail = f"the prompt has {word}{certain} tokens, one session may hold {longest}"
        return ("context_length_exceeded", detail, 0)
    session = state.sessions.get(event.session)
    if session is None:
        if sessions.crowded(state) and sessions.evictable(state, payer) is None:
            return ("capacity", f"{state.policy.sessions_max} sessions are open", 30 * SECOND_NS)
        late = _late(state, group, payer, event)
        if late is not None:
            return late
    elif session.tenant is not payer or session.closing:
        return ("session_not_found", f"no session {event.session}", 0)
    else:
        branch = session.branches.get(event.branch)
        if branch is None and sessions.full(session, event.fork_of):
            return ("lane_full", f"{BRANCHES_MAX} branches of this session are busy", SECOND_NS)
        if branch is not None and branch.group is not group:
            return ("invalid_request_error", "a branch stays with its model", 0)
        if branch is not None and len(branch.turns) >= BRANCH_QUEUE_MAX:
            return ("lane_full", f"{BRANCH_QUEUE_MAX} turns wait on this branch", SECOND_NS)
    lane = state.policy.lanes[event.lane]
    if payer.waiting[event.lane] >= lane.queue_max:
        return ("lane_full", _full(payer, event.lane, lane.queue_max), lane.wait_max_ns // 4)
    over = tenant.refusal(payer, state.now_ns)
    if over is not None:
        return ("quota_exceeded", f"{over[0]} of tenant {payer.id}", over[1])
    limit = limit_of(state, fitted(event, payer, group), group)
    most = max(event.prompt_tokens, event.most_tokens)
    found = budget.refusal(state, payer, session, most, limit)
    if found is None:
        return None
    advice = "ask for less output"
    if not event.limit_tokens:
        advice = f"it names no output limit, so {limit} tokens of output count: set max_tokens"
    return found._replace(detail=f"{found.detail}; {advice}")


def _full(payer: Tenant, lane: int, queue_max: int) -> str:
    return f"{queue_max} turns of tenant {payer.id} wait in lane {LANE_NAMES[lane]} (queue_max)"


def _late(
    state: State, group: Group, payer: Tenant, event: TurnArrived
) -> tuple[str, str, int] | None:
    """Refuse a session that would wait too long for its first card."""
    most_ns = state.policy.lanes[event.lane].refuse_ns
    if not most_ns:
        return None
    asked_ns = demand.asked_ns(payer, event.session, state.now_ns)
    wait_ns = demand.wait_ns(group, event.lane, payer, asked_ns)
    if wait_ns <= most_ns:
        return None
    detail = demand.too_long(event.lane, wait_ns, most_ns)
    return ("lane_full", detail, max(SECOND_NS, wait_ns - most_ns))
