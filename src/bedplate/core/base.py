"""The state machine: one method changes it, in one fixed order (core/__init__.py)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

from bedplate.core import (
    admission,
    breaker,
    budget,
    calls,
    cards,
    events,
    eviction,
    fairness,
    kv,
    lease,
    order,
    placement,
    prefixes,
    retention,
    sessions,
    turns,
    water,
)
from bedplate.core.actions import Action
from bedplate.core.codec import digest_bytes
from bedplate.core.events import Event
from bedplate.core.ids import CardId, ModelId
from bedplate.core.release import release
from bedplate.core.rules import Rules
from bedplate.core.state import State
from bedplate.core.writethrough import write_through
from bedplate.core.yielding import make_way

SHIPPED = Rules(
    rank=order.least_work,
    tenant_rank=fairness.tenant_rank,
    fits=admission.fits,
    plan=placement.plan,
    worth=eviction.worth,
    keeps=retention.keeps,
    entry_worth=eviction.entry_worth,
    lease=lease.length_ns,
    loads=retention.loads,
    stores=retention.stores,
    shares=prefixes.shares,
)
"""What a service runs, and a replay and the twin with it."""
GROUPS_A_STEP_MAX = 256
"""Groups looked at in one step, those looked at again counted again."""


class Base:
    """One supernode's scheduling state and the only way to change it.

    A driver calls `handle` with each event in order and carries out what it returns. The same
    events at the same times give the same actions and the same digest, in any process.
    """

    __slots__ = ("digest", "seq", "state")

    def __init__(self, rules: Rules = SHIPPED) -> None:
        self.state = State(rules)
        self.seq = 0
        self.digest = bytes(32)

    def handle(self, now_ns: int, event: Event) -> tuple[Action, ...]:
        """Take in one event and return what must be done about it.

        Args:
            now_ns: Time of the event in nanoseconds; never less than in the call before.
            event: What happened. The first of all is PolicyChanged.

        Returns:
            Actions in the order in which they must be started.

        Raises:
            AssertionError: a bug, or a driver that breaks the contract; core must not be used
            after.

        Cost: amortised O(log cards + log turns + slots of the cards looked at).
        """
        state = self.state
        assert now_ns >= state.now_ns, "time fell (INV-08)"
        assert self.seq > 0 or isinstance(event, events.PolicyChanged)
        state.now_ns = now_ns
        _HANDLERS[type(event)](state, event)
        if state.deadlines and state.deadlines[0][0] <= now_ns:
            state.fire_deadlines(_due)
        if state.closing:
            sessions.finish_closing(state)
        if state.stirred:
            _schedule(state)
        if state.loose:
            write_through(state)
        if state.stirred:
            _schedule(state)
            state.stirred.clear()
        water.look(state)
        state.touched.clear()
        state.moved.clear()
        state.arm_timer()
        actions = tuple(state.actions)
        state.actions = []
        self.seq += 1
        self.digest = hashlib.sha256(self.digest + digest_bytes(now_ns, event, actions)).digest()
        return actions


def _schedule(state: State) -> None:
    """Admit and release in every group that something happened to, by another's doing too."""
    for _ in range(GROUPS_A_STEP_MAX):
        if not state.stirred:
            return
        group = next(iter(state.stirred.values()))
        admission.admit(state, group)
        release(state, group)
        make_way(state, group)
        del state.stirred[group.model]


def _due(state: State, kind: str, subject: str) -> None:
    if kind == "idle":
        sessions.idle_deadline(state, subject)
    elif kind == "prefix":
        prefixes.idle_deadline(state, subject)
    elif kind == "slice":
        cards.slice_due(state, state.groups[ModelId(subject)])
    elif kind == "admit":
        group = state.groups[ModelId(subject)]
        group.wake_ns = 0
        state.stir(group)
    elif kind == "breaker":
        breaker.due(state, CardId(subject))
    else:
        turns.deadline(state, kind, subject)


def _timer_fired(state: State, event: events.TimerFired) -> None:
    state.armed_ns = 0


def _session_closed(state: State, event: events.SessionClosed) -> None:
    session = state.sessions.get(event.session)
    if session is not None:
        sessions.close(state, session, "closed")


def _journal_stalled(state: State, event: events.JournalStalled) -> None:
    state.journal_stalled = event.on


def _shutdown(state: State, event: events.ShutdownRequested) -> None:
    state.shutting_down = True


_HANDLERS: dict[type[Any], Callable[[State, Any], None]] = {
    events.TurnArrived: turns.arrived,
    events.TurnStarted: turns.started,
    events.TokensEmitted: turns.emitted,
    events.TurnEnded: turns.ended,
    events.DispatchFailed: turns.failed,
    events.TurnCancelled: turns.cancelled,
    events.SessionClosed: _session_closed,
    events.ToolProgress: lease.progress,
    events.KvStored: kv.stored,
    events.KvLoaded: kv.loaded,
    events.KvDropped: kv.dropped,
    events.EntryDropped: kv.entry_dropped,
    events.KvFailed: kv.failed,
    events.CardUp: cards.up,
    events.CardDown: cards.down,
    events.CardDraining: cards.draining,
    events.CardReport: cards.report,
    events.TimerFired: _timer_fired,
    events.PolicyChanged: cards.policy_changed,
    events.JournalStalled: _journal_stalled,
    events.ShutdownRequested: _shutdown,
    events.CalendarDay: budget.calendar_day,
    events.LedgerRead: budget.ledger_read,
    events.CallArrived: calls.arrived,
    events.CallEnded: calls.ended,
}
