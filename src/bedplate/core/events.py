"""Events: everything that core is ever told. Nothing else changes its state.

All are immutable tuples of integers, strings, booleans and tuples of these, so that one canonical
encoding (`core/codec.py`) serves journal, digest and replay. Times are not in events: the driver
passes `now_ns` beside each. `attempt` counts dispatches of one turn from 1; an event of an older
attempt is stale and changes nothing.
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
from bedplate.core.limits import Policy

GOOD_ENDS = ("stop", "length", "tool_calls")
"""Statuses of `TurnEnded` after which the slot's KV is the branch's context."""


class TurnArrived(NamedTuple):
    """A checked call of a client, sized by its engine's tokenizer, wants to run.

    `branch` is the line of the session that it extends; `fork_of` >= 0 means that this is the first
    turn of a new branch which shares its first `reuse_tokens` tokens with that parent branch.
    `reuse_tokens` counts the leading prompt tokens that equal what the branch (or the parent)
    already computed. `limit_tokens` is the client's output limit, 0 for the lane's default.
    `prefix` names the opening of a prompt of which nothing is computed yet: its first
    `prefix_tokens` tokens, before which there is no other. Equal names of one tenant and model mean
    equal tokens; "" for none.
    `least_tokens` and `most_tokens` bound a prompt that is only estimated: it certainly has the
    one, and no more than the other. 0: `prompt_tokens` is the count.
    """

    turn: TurnId
    session: SessionId
    branch: BranchId
    fork_of: int
    tenant: TenantId
    lane: int
    model: ModelId
    prompt_tokens: int
    reuse_tokens: int
    limit_tokens: int
    resumable: bool
    exact: bool
    prefix: str = ""
    prefix_tokens: int = 0
    least_tokens: int = 0
    most_tokens: int = 0


class TurnStarted(NamedTuple):
    """The engine took the turn: prefill is done, the first token is out.

    `cached_tokens` is measured.
    """

    turn: TurnId
    attempt: int
    prompt_tokens: int
    cached_tokens: int


class TokensEmitted(NamedTuple):
    """Progress of a running turn, at most every 16 tokens or 250 ms.

    `out_tokens` is the total so far.
    """

    turn: TurnId
    attempt: int
    out_tokens: int


class TurnEnded(NamedTuple):
    """The engine is done with the turn, by its own end or because core asked it to stop.

    `status`: stop | length | tool_calls | cancelled | held | yielded | error | lost. Held is
    cancelled, where the engine waited for the client most of the time. Tokens are the engine's own
    count (`exact`) or an estimate. `kv_tokens` is what the slot now holds for the
    branch, 0 if nothing usable. A turn that yielded goes on later; its prompt counts as cached or
    not as its first run found it, in every later word too, so that it is paid for once.
    """

    turn: TurnId
    attempt: int
    status: str
    prompt_tokens: int
    cached_tokens: int
    out_tokens: int
    kv_tokens: int
    tool: str
    exact: bool


class DispatchFailed(NamedTuple):
    """The engine did not take the turn, or lost it. `retryable` when it may run elsewhere.

    `out_tokens` counts what was delivered before the failure; a turn that delivered something runs
    on only if it is resumable. `code` is one of the codes of `bedplate.errors`.
    """

    turn: TurnId
    attempt: int
    code: str
    retryable: bool
    out_tokens: int


class TurnCancelled(NamedTuple):
    """The client is gone or a deadline of its own passed.

    `reason`: client_cancelled | deadline | shutdown.
    """

    turn: TurnId
    reason: str


class SessionClosed(NamedTuple):
    """The client closes the session; running turns are cancelled, all its KV is dropped."""

    session: SessionId
    reason: str


class ToolProgress(NamedTuple):
    """The client says how long the tool of a branch will still run (0 = unknown).

    `branch` −1 is the one whose turn ended last.
    """

    session: SessionId
    branch: BranchId
    eta_ns: int


class KvStored(NamedTuple):
    """Answer to StoreKv, or to a Dispatch with a prefix, before its TurnEnded.

    The pool holds `tokens` tokens in `size_bytes` bytes under `entry`.
    """

    card: CardId
    slot: SlotId
    entry: EntryId
    tokens: int
    size_bytes: int


class KvLoaded(NamedTuple):
    """Answer to LoadKv.

    The slot holds the entry's `tokens` tokens, checksum and fingerprint verified.
    """

    card: CardId
    slot: SlotId
    entry: EntryId
    tokens: int


class KvDropped(NamedTuple):
    """Answer to DropKv: the slot is empty."""

    card: CardId
    slot: SlotId


class EntryDropped(NamedTuple):
    """Answer to DropEntry: the pool's bytes of this entry are free."""

    entry: EntryId


class KvFailed(NamedTuple):
    """StoreKv, LoadKv, DropKv or DropEntry failed. `op`: store | load | drop | drop_entry.

    A store that a Dispatch asked for fails the same way, and its turn goes on.
    """

    op: str
    card: CardId
    slot: SlotId
    entry: EntryId
    code: str


class CardUp(NamedTuple):
    """A card serves, empty. Sent again after a restart of the card.

    `kv`: full (store, load, drop) | hints (the engine keeps its own cache) | none.
    `can_cut`: a stored KV may be cut back to a shorter prefix. `context_tokens` is the longest
    single session. `kv_bytes_per_token` sizes stores before they are measured. `prompt_streams`:
    prompts that it computes side by side, 0 if nobody cares how many wait there. `running_busy`:
    turns that it runs at once while more wait than could start, 0 for running_max.
    """

    card: CardId
    model: ModelId
    partition: str
    kv: str
    can_cut: bool
    slots: int
    running_max: int
    kv_tokens: int
    context_tokens: int
    kv_bytes_per_token: int
    prompt_streams: int = 0
    running_busy: int = 0


class CardDown(NamedTuple):
    """A card is lost with all it held."""

    card: CardId
    reason: str


class CardDraining(NamedTuple):
    """An operator takes the card out (`on`) or back in.

    Running turns end, sessions move, none are cut.
    """

    card: CardId
    on: bool


class CardReport(NamedTuple):
    """Measured use of a card: its engine's own counters since the card came up."""

    card: CardId
    kv_used_tokens: int
    running: int
    prompt_tokens_total: int
    cached_tokens_total: int
    out_tokens_total: int


class TimerFired(NamedTuple):
    """The one timer that core armed with SetTimer is due."""


class PolicyChanged(NamedTuple):
    """Limits, lanes and tenants as configured now; the first event of every journal."""

    policy: Policy


class CalendarDay(NamedTuple):
    """The day and the month of a time zone, which core cannot know: their beginnings and ends.

    The driver sends one for each zone of the policy at its start and at each midnight. One that is
    late costs nothing: what is spent after `day_end_ns` is of the next day already.
    """

    zone: str
    day_ns: int
    day_end_ns: int
    month_ns: int
    month_end_ns: int


class LedgerRead(NamedTuple):
    """What the rows of the journal say a tenant has spent in its day and month, in micro-currency.

    Sent where a core begins without the state of the one before it.
    """

    tenant: TenantId
    day_micro: int
    month_micro: int


class CallArrived(NamedTuple):
    """A call that keeps no KV and has no next turn (an embedding) wants to run, outside of core.

    It is refused in the same step, or may run. `tokens` is booked until its end tells the count;
    budgets reserve `most_tokens`, which it can have at most, 0 where `tokens` is exact.
    """

    call: TurnId
    tenant: TenantId
    lane: int
    model: ModelId
    tokens: int
    most_tokens: int = 0


class CallEnded(NamedTuple):
    """Such a call is over. `status`: stop (then it is metered) | error | lost."""

    call: TurnId
    status: str
    prompt_tokens: int
    took_ns: int


class JournalStalled(NamedTuple):
    """Commits are late: while `on`, core refuses new turns and lets running ones end."""

    on: bool


class ShutdownRequested(NamedTuple):
    """Drain: refuse new turns with 503, let running ones end until the driver's deadline."""


Event = (
    TurnArrived
    | TurnStarted
    | TokensEmitted
    | TurnEnded
    | DispatchFailed
    | TurnCancelled
    | SessionClosed
    | ToolProgress
    | KvStored
    | KvLoaded
    | KvDropped
    | EntryDropped
    | KvFailed
    | CardUp
    | CardDown
    | CardDraining
    | CardReport
    | TimerFired
    | PolicyChanged
    | JournalStalled
    | ShutdownRequested
    | CalendarDay
    | LedgerRead
    | CallArrived
    | CallEnded
)
