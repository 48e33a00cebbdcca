"""Limits of a tenant: calls in flight, turns on cards, requests and tokens a minute.

Buckets are integers: a level counts units × one minute in nanoseconds, grows by the limit each
nanosecond and is capped at one minute's worth. A call is let in while the token level is above
zero and then takes prompt + limit, so that a level may go below zero by one call, never by two;
what was not used is given back when the turn is settled.
"""

from __future__ import annotations

from bedplate.core.limits import TenantPolicy
from bedplate.core.states import Tenant, Turn
from bedplate.core.units import MINUTE_NS


def change(tenant: Tenant, policy: TenantPolicy) -> None:
    """Put new limits in force; levels above a lower cap are cut, a new limit starts full."""
    old = tenant.policy
    tenant.policy = policy
    request_cap = policy.requests_per_minute * MINUTE_NS
    token_cap = policy.tokens_per_minute * MINUTE_NS
    fresh_requests = old.requests_per_minute == 0
    fresh_tokens = old.tokens_per_minute == 0
    tenant.request_level = request_cap if fresh_requests else min(tenant.request_level, request_cap)
    tenant.token_level = token_cap if fresh_tokens else min(tenant.token_level, token_cap)


def refill(tenant: Tenant, now_ns: int) -> None:
    """Let the buckets grow to `now_ns`."""
    past_ns = now_ns - tenant.refilled_ns
    assert past_ns >= 0
    tenant.refilled_ns = now_ns
    requests = tenant.policy.requests_per_minute
    tokens = tenant.policy.tokens_per_minute
    tenant.request_level = min(requests * MINUTE_NS, tenant.request_level + past_ns * requests)
    tenant.token_level = min(tokens * MINUTE_NS, tenant.token_level + past_ns * tokens)


def refusal(tenant: Tenant, now_ns: int) -> tuple[str, int] | None:
    """Return (what is exhausted, nanoseconds until it is not), or None when a call may come in."""
    policy = tenant.policy
    if policy.requests_per_minute or policy.tokens_per_minute:
        refill(tenant, now_ns)
    if policy.inflight_max and tenant.inflight >= policy.inflight_max:
        return (f"{policy.inflight_max} calls in flight", MINUTE_NS // 60)
    if policy.requests_per_minute and tenant.request_level < MINUTE_NS:
        missing = MINUTE_NS - tenant.request_level
        return (
            f"{policy.requests_per_minute} requests a minute",
            -(-missing // policy.requests_per_minute),
        )
    if policy.tokens_per_minute and tenant.token_level <= 0:
        missing = 1 - tenant.token_level
        return (
            f"{policy.tokens_per_minute} tokens a minute",
            -(-missing // policy.tokens_per_minute),
        )
    return None


def take(tenant: Tenant, turn: Turn) -> None:
    """Book one accepted call: its request, and prompt + limit tokens until it is settled."""
    tenant.inflight += 1
    if tenant.policy.requests_per_minute:
        tenant.request_level -= MINUTE_NS
    if tenant.policy.tokens_per_minute:
        turn.reserved_tokens = turn.prompt_tokens + turn.limit_tokens
        tenant.token_level -= turn.reserved_tokens * MINUTE_NS


def spend(tenant: Tenant, *, requests: int, tokens: int) -> None:
    """Take from the buckets that have a limit, or give tokens back; none is ever overfull."""
    if tenant.policy.requests_per_minute:
        tenant.request_level -= requests * MINUTE_NS
    if tenant.policy.tokens_per_minute:
        cap = tenant.policy.tokens_per_minute * MINUTE_NS
        tenant.token_level = min(cap, tenant.token_level - tokens * MINUTE_NS)


def settle(tenant: Tenant, turn: Turn, used_tokens: int) -> None:
    """Give back what an ended turn reserved and did not use."""
    assert tenant.inflight > 0
    tenant.inflight -= 1
    if turn.reserved_tokens:
        cap = tenant.policy.tokens_per_minute * MINUTE_NS
        back = (turn.reserved_tokens - used_tokens) * MINUTE_NS
        tenant.token_level = min(cap, tenant.token_level + back)
        turn.reserved_tokens = 0
