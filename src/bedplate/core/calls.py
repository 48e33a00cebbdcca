"""Calls that keep no KV and have no next turn: embeddings. Core counts them and places nothing.

They have the limits of their tenant together with its turns: calls in flight, requests and tokens
a minute, money. Arrived and not refused, a call runs at its engine at once, outside; its end is
metered like a turn's.
"""

from __future__ import annotations

from bedplate.core import budget, tenant
from bedplate.core.actions import Refuse, Settled
from bedplate.core.charges import highest
from bedplate.core.events import CallArrived, CallEnded
from bedplate.core.ids import BranchId, ModelId, SessionId, TenantId, TurnId
from bedplate.core.state import State
from bedplate.core.states import Tenant
from bedplate.core.units import SECOND_NS


def arrived(state: State, event: CallArrived) -> None:
    """Refuse a call at the door, or count it until it ends."""
    assert event.call not in state.calls, event.call
    assert event.tokens >= 1
    payer = state.tenant(event.tenant)
    refusal = _refusal(state, event, payer)
    if refusal is not None:
        reason, detail, retry_ns = refusal
        state.count("refused")
        state.emit(Refuse(event.call, reason, detail, retry_ns))
        return
    micro = highest(state.policy.prices, prompt_tokens=_most(event), limit_tokens=0)
    payer.inflight += 1
    payer.reserved_micro += micro
    tenant.spend(payer, requests=1, tokens=event.tokens)
    state.calls[event.call] = (event.tenant, event.lane, event.model, event.tokens, micro)


def _refusal(state: State, event: CallArrived, payer: Tenant) -> tuple[str, str, int] | None:
    if state.shutting_down:
        return ("draining", "the service is shutting down", 5 * SECOND_NS)
    if state.journal_stalled:
        return ("journal_error", "the journal cannot be written", 5 * SECOND_NS)
    over = tenant.refusal(payer, state.now_ns)
    if over is not None:
        return ("quota_exceeded", f"{over[0]} of tenant {payer.id}", over[1])
    return budget.refusal(state, payer, None, _most(event), 0)


def _most(event: CallArrived) -> int:
    return max(event.tokens, event.most_tokens)


def ended(state: State, event: CallEnded) -> None:
    """Give back what the call reserved; meter what its engine counted, if it came to an end."""
    known = state.calls.pop(event.call, None)
    if known is None:
        state.count("stale_events")
        return
    owner, lane, model, tokens, micro = known
    payer = state.tenants[TenantId(owner)]
    payer.inflight -= 1
    payer.reserved_micro -= micro
    assert payer.inflight >= 0
    assert payer.reserved_micro >= 0
    tenant.refill(payer, state.now_ns)
    tenant.spend(payer, requests=0, tokens=event.prompt_tokens - tokens)
    if event.status == "stop":
        budget.meter(state, payer, None, _row(payer, lane, ModelId(model), event))


def _row(payer: Tenant, lane: int, model: ModelId, event: CallEnded) -> Settled:
    return Settled(
        turn=TurnId(""),
        session=SessionId(""),
        branch=BranchId(0),
        tenant=payer.id,
        lane=lane,
        model=model,
        card="",
        status=event.status,
        prompt_tokens=event.prompt_tokens,
        cached_tokens=0,
        out_tokens=0,
        queue_ns=0,
        slot_ns=event.took_ns,
        tool_ns=0,
        kv_card_token_ns=0,
        kv_pool_token_ns=0,
        attempts=1,
        exact=True,
    )
