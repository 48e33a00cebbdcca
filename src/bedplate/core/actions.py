"""Actions: everything that core asks of its driver. Each that can fail names its failure event.

The driver carries them out in order. Actions that stay inside (dispatch, KV moves) start at once;
what leaves the process (Refuse, FailTurn, and every byte of a turn) waits for the commit of the
event that caused it.
"""

from __future__ import annotations

from typing import NamedTuple

from bedplate.core.ids import (
    BranchId,
    CardId,
    EntryId,
    ModelId,
    SessionId,
    SlotId,
    TenantId,
    TurnId,
)


class Dispatch(NamedTuple):
    """Run the turn on card and slot now.

    Answered by TurnStarted, TokensEmitted, TurnEnded, or DispatchFailed.

    `expect_cached_tokens`: leading tokens that the slot already holds, by core's books.
    `loaded`: the slot was filled from the pool for this turn: verify the measured cache against it.
    `resume_tokens` > 0: so many output tokens were delivered by an earlier attempt; continue after
    them.
    `limit_tokens` is the output limit in force, what was delivered included.
    `prefix_tokens` > 0: compute so many leading tokens first, copy exactly these to the pool as
    `prefix_entry`, answer that with KvStored or KvFailed(op=store), and go on. The entry belongs to
    the tenant, to no session.
    """

    turn: TurnId
    attempt: int
    session: SessionId
    branch: BranchId
    card: CardId
    slot: SlotId
    expect_cached_tokens: int
    loaded: bool
    limit_tokens: int
    resume_tokens: int
    prefix_entry: EntryId = EntryId(0)
    prefix_tokens: int = 0


class Refuse(NamedTuple):
    """The turn is not accepted.

    `reason` is a code of `bedplate.errors`; `detail` completes the message.
    """

    turn: TurnId
    reason: str
    detail: str
    retry_after_ns: int


class FailTurn(NamedTuple):
    """An accepted turn ends without (more of) an answer.

    `reason` is a code of `bedplate.errors`.
    """

    turn: TurnId
    reason: str
    detail: str


class CancelTurn(NamedTuple):
    """Stop the running turn at its engine within 1 s; TurnEnded(status=cancelled) must follow."""

    turn: TurnId
    attempt: int


class YieldTurn(NamedTuple):
    """Stop the running turn at its engine within 1 s: one of a higher lane needs its place.

    Answered by TurnEnded(status=yielded), or by the end that the turn came to just before. What it
    computed stays in its slot, and a later Dispatch lets it go on. A turn that is not resumable is
    asked before its first token is out; if that was given to its client meanwhile, it runs on.
    """

    turn: TurnId
    attempt: int


class LoadKv(NamedTuple):
    """Fill an empty slot from the pool. Answered by KvLoaded or KvFailed(op=load)."""

    card: CardId
    slot: SlotId
    session: SessionId
    branch: BranchId
    entry: EntryId


class StoreKv(NamedTuple):
    """Copy an idle slot to the pool as `entry`. Answered by KvStored or KvFailed(op=store)."""

    card: CardId
    slot: SlotId
    tenant: TenantId
    session: SessionId
    branch: BranchId
    entry: EntryId


class DropKv(NamedTuple):
    """Empty a slot. Answered by KvDropped or KvFailed(op=drop)."""

    card: CardId
    slot: SlotId


class DropEntry(NamedTuple):
    """Delete a pool entry. Answered by EntryDropped or KvFailed(op=drop_entry)."""

    entry: EntryId


class SetTimer(NamedTuple):
    """Arm the one timer of this core: post TimerFired at `at_ns` or soon after.

    Replaces the one before.
    """

    at_ns: int


class ClearTimer(NamedTuple):
    """Nothing is due: disarm the timer."""


class Alarm(NamedTuple):
    """An operator should know: a water level was crossed, or something broke.

    `kind`: card_kv | tenant_kv | pool (`level` counts levels reached, 0 = all clear) | card_down |
    slot_broken | pool_entry_stuck | block_size_kept | breaker (1 open, 0 closed again) |
    budget_day | budget_month (1: 80 % spent, 2: all).
    """

    kind: str
    subject: str
    level: int


class Settled(NamedTuple):
    """Use of one turn, to be metered.

    With an empty turn it is a closed session's last gap; with an empty session too, the KV of an
    opening since the last turn that began with it.
    Times in nanoseconds; KV areas in token-nanoseconds since the branch's previous row, and for a
    turn that begins with a shared opening since that opening's. `tool_ns` is the gap before this
    turn. `cached_tokens` are those the engine did not compute again.
    `status` as in TurnEnded, or refused/failed codes.
    """

    turn: TurnId
    session: SessionId
    branch: BranchId
    tenant: TenantId
    lane: int
    model: ModelId
    card: str
    status: str
    prompt_tokens: int
    cached_tokens: int
    out_tokens: int
    queue_ns: int
    slot_ns: int
    tool_ns: int
    kv_card_token_ns: int
    kv_pool_token_ns: int
    attempts: int
    exact: bool


class SessionEnded(NamedTuple):
    """The session left core's memory. `reason`: closed | expired | evicted."""

    session: SessionId
    reason: str


Action = (
    Dispatch
    | Refuse
    | FailTurn
    | CancelTurn
    | YieldTurn
    | LoadKv
    | StoreKv
    | DropKv
    | DropEntry
    | SetTimer
    | ClearTimer
    | Alarm
    | Settled
    | SessionEnded
)
