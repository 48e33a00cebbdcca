"""Read-only pictures of the core for people, metrics and the API. Nothing here changes state."""

from __future__ import annotations

from typing import NamedTuple

from bedplate.core import budget
from bedplate.core.base import Base
from bedplate.core.ids import SessionId, TurnId
from bedplate.core.limits import LANE_NAMES
from bedplate.core.states import WAITING, Branch, Card, Session, Tenant

WHY_TEXT = {
    "behind": "another turn of the same branch runs first",
    "store_in_flight": "the KV of the branch is being written to the pool",
    "admission": "the session is not admitted: all KV room is reserved by other sessions",
    "ready": "it is ready and waits for a card that can start a turn",
    "no_room": "no card has enough free KV blocks beside its running turns",
    "busy": "cards with room for it compute as many prompts, or run as many turns, as they should",
    "reserve": "the reserves of other tenants leave it no room on the cards",
    "home_busy": "its KV is only on one card, and that card is busy",
    "tenant_running_max": "the tenant runs as many turns as its limit allows",
    "tenant_card_tokens": "the tenant holds as much KV on cards as its limit allows",
    "room": "a place was found; idle KV is being dropped to make room",
    "loading": "its KV is being loaded from the pool",
    "prefill": "it was handed to its card and computes the prompt",
    "decoding": "it is producing tokens",
}
"""What each reason means, in words for an operator."""


class CardView(NamedTuple):
    """One card. KV in tokens; `*_total` are the engine's own counters since it came up.

    `breaker`: closed | half_open | open, see `core/breaker.py`.
    """

    card: str
    model: str
    partition: str
    kv: str
    up: bool
    draining: bool
    slice: str
    running: int
    running_max: int
    slots: int
    slots_held: int
    kv_used_tokens: int
    kv_running_tokens: int
    kv_total_tokens: int
    level: int
    prompt_tokens_total: int
    cached_tokens_total: int
    out_tokens_total: int
    breaker: str


class BranchView(NamedTuple):
    """One branch: where its KV is, and what its first turn waits for.

    `since_ns` is when that turn was handed to its card, before that when it arrived, 0 without one;
    `out_tokens` is how many it has produced, by its card's last word.
    """

    branch: int
    turns: int
    state: str
    why: str
    card: str
    card_tokens: int
    dirty: bool
    pool_tokens: int
    since_ns: int
    out_tokens: int


class SessionView(NamedTuple):
    """One session: where it is, and what it used; money in millionths of the currency unit.

    `*_max` are what its tenant's sessions may use, each in its life; 0 means no limit.
    """

    session: str
    tenant: str
    lane: str
    model: str
    admitted: bool
    open_turns: int
    created_ns: int
    lease_ns: int
    expires_ns: int
    branches: tuple[BranchView, ...]
    spent_micro: int
    reserved_micro: int
    spent_tokens: int
    reserved_tokens: int
    session_micro_max: int
    session_total_tokens_max: int


class TenantView(NamedTuple):
    """One tenant: what it uses now, and its money; 0 as a limit means none.

    `card_tokens` is its KV on cards, `running_tokens` that of its running turns, of which `level`
    counts the water levels reached. Money in millionths of the currency unit, of the tenant's own
    day and month.
    """

    tenant: str
    sessions: int
    inflight: int
    running: int
    card_tokens: int
    running_tokens: int
    card_tokens_max: int
    reserve_tokens: int
    level: int
    pool_bytes: int
    day_micro: int
    month_micro: int
    reserved_micro: int
    day_micro_max: int
    month_micro_max: int
    zone: str


class LaneView(NamedTuple):
    """One lane: turns waiting and on cards, over all tenants."""

    lane: str
    waiting: int
    running: int
    sessions: int


class PoolView(NamedTuple):
    """The pool, in bytes.

    `entries` counts stored copies, those being written or deleted included.
    """

    used_bytes: int
    total_bytes: int
    entries: int
    level: int


def cards(base: Base) -> list[CardView]:
    """Return every card in the order in which they first came up. Cost: O(slots)."""
    return [_card(base, card) for card in base.state.cards.values()]


def _card(base: Base, card: Card) -> CardView:
    block = base.state.policy.block_tokens
    held = sum(1 for slot in card.slots if slot.branch is not None)
    _, _, prompt, cached, out = card.report
    return CardView(
        card=card.id,
        model=card.group.model,
        partition=card.partition,
        kv=card.kv,
        up=card.up,
        draining=card.draining,
        slice=card.slice.id if card.slice is not None else "",
        running=card.running,
        running_max=card.running_max,
        slots=len(card.slots),
        slots_held=held,
        kv_used_tokens=card.used_blocks * block,
        kv_running_tokens=card.busy_blocks * block,
        kv_total_tokens=card.total_blocks * block,
        level=card.level,
        prompt_tokens_total=prompt,
        cached_tokens_total=cached,
        out_tokens_total=out,
        breaker=card.breaker,
    )


def sessions(base: Base) -> list[SessionView]:
    """Return every open session, oldest first; one that is closing is not. Cost: O(sessions)."""
    return [_session(session) for session in base.state.sessions.values() if not session.closing]


def session(base: Base, session_id: SessionId) -> SessionView | None:
    """Return one session, or None if it is not open or closing."""
    found = base.state.sessions.get(session_id)
    return _session(found) if found is not None and not found.closing else None


def _session(found: Session) -> SessionView:
    return SessionView(
        session=found.id,
        tenant=found.tenant.id,
        lane=LANE_NAMES[found.lane],
        model=found.group.model,
        admitted=found.admitted,
        open_turns=found.open_turns,
        created_ns=found.created_ns,
        lease_ns=found.lease_ns,
        expires_ns=found.expires_ns,
        branches=tuple(_branch(branch) for branch in found.branches.values()),
        spent_micro=found.spent_micro,
        reserved_micro=found.reserved_micro,
        spent_tokens=found.spent_tokens,
        reserved_tokens=found.reserved_tokens,
        session_micro_max=found.tenant.policy.session_micro_max,
        session_total_tokens_max=found.tenant.policy.session_total_tokens_max,
    )


def _branch(branch: Branch) -> BranchView:
    turn = branch.turns[0] if branch.turns else None
    slot = branch.slot
    return BranchView(
        branch=branch.id,
        turns=len(branch.turns),
        state=turn.state if turn is not None else "idle",
        why=WHY_TEXT[turn.why] if turn is not None else "",
        card=slot.card.id if slot is not None else "",
        card_tokens=slot.tokens if slot is not None else 0,
        dirty=slot.dirty if slot is not None else False,
        pool_tokens=branch.entry.tokens if branch.entry is not None else 0,
        since_ns=(turn.dispatched_ns or turn.arrived_ns) if turn is not None else 0,
        out_tokens=turn.out_tokens if turn is not None else 0,
    )


def lanes(base: Base) -> list[LaneView]:
    """Return the three lanes by rank. Cost: O(turns + sessions)."""
    waiting, running, opened = [0, 0, 0], [0, 0, 0], [0, 0, 0]
    for turn in base.state.turns.values():
        if turn.state in WAITING:
            waiting[turn.lane] += 1
        else:
            running[turn.lane] += 1
    for found in base.state.sessions.values():
        opened[found.lane] += 1
    return [LaneView(n, waiting[i], running[i], opened[i]) for i, n in enumerate(LANE_NAMES)]


def tenants(base: Base) -> list[TenantView]:
    """Return every tenant that called since the core began, in that order. Cost: O(tenants)."""
    return [_tenant(base, tenant) for tenant in base.state.tenants.values()]


def _tenant(base: Base, tenant: Tenant) -> TenantView:
    day_micro, month_micro = budget.spent_now(base.state, tenant)
    return TenantView(
        tenant=tenant.id,
        sessions=tenant.sessions,
        inflight=tenant.inflight,
        running=tenant.running,
        card_tokens=tenant.card_blocks * base.state.policy.block_tokens,
        running_tokens=tenant.busy_blocks * base.state.policy.block_tokens,
        card_tokens_max=tenant.policy.card_tokens_max,
        reserve_tokens=tenant.policy.reserve_tokens,
        level=tenant.level,
        pool_bytes=tenant.pool_bytes,
        day_micro=day_micro,
        month_micro=month_micro,
        reserved_micro=tenant.reserved_micro,
        day_micro_max=tenant.policy.day_micro_max,
        month_micro_max=tenant.policy.month_micro_max,
        zone=tenant.policy.zone,
    )


def pool(base: Base) -> PoolView:
    """Return the pool's books."""
    state = base.state
    return PoolView(
        state.pool_bytes, state.policy.pool_bytes_max, len(state.entries), state.pool_level
    )


def why(base: Base, turn_id: TurnId) -> str:
    """Say in words why a turn does not produce tokens yet."""
    turn = base.state.turns.get(turn_id)
    if turn is None:
        return "no such turn is open"
    return f"{turn.state}: {WHY_TEXT[turn.why]}"


def counters(base: Base) -> dict[str, int]:
    """Return core's counters by name; they only rise, and never decide."""
    return dict(base.state.counters)
