"""A core with a clock and short words for events, so that a test reads as a story."""

from __future__ import annotations

from typing import Any, TypeVar

from bedplate.core import actions as act
from bedplate.core import events as ev
from bedplate.core import invariants
from bedplate.core.base import Base
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
from bedplate.core.limits import LanePolicy, Policy, TenantPolicy
from bedplate.core.units import MINUTE_NS, SECOND_NS

A = TypeVar("A")

LANE = LanePolicy(1000, 4, 60 * SECOND_NS, 10, 30 * SECOND_NS, 10 * MINUTE_NS)
FREE = TenantPolicy(TenantId(""), 0, 0, 0, 0, 0, 0)
POLICY = Policy(
    block_tokens=10,
    lanes=(LANE, LANE, LANE),
    tenants=(),
    default_tenant=FREE,
    pool_bytes_max=10**9,
    water_permille=(500, 900),
    run_base_ns=10 * SECOND_NS,
    run_token_ns=SECOND_NS,
    sessions_max=100,
)


class Steps:
    """The core, its time, and what the last step said."""

    def __init__(self, **policy: Any) -> None:
        self.base = Base()
        self.now = 1_000 * SECOND_NS
        self.policy = POLICY._replace(**policy)
        self.last: tuple[act.Action, ...] = ()
        self.tell(ev.PolicyChanged(self.policy))

    def tell(self, event: ev.Event, *, after_ns: int = 0) -> tuple[act.Action, ...]:
        """Hand in one event; every invariant must hold after it."""
        self.now += after_ns
        self.last = self.base.handle(self.now, event)
        invariants.check(self.base)
        return self.last

    def said(self, kind: type[A]) -> list[A]:
        """Return the last step's actions of one kind."""
        return [action for action in self.last if isinstance(action, kind)]

    def one(self, kind: type[A]) -> A:
        """Return the last step's only action of one kind."""
        found = self.said(kind)
        assert len(found) == 1, self.last
        return found[0]

    # -- cards

    def card(self, name: str = "c0", **changes: Any) -> None:
        """Bring up a card: two slots, both may run, 20 blocks of 10 tokens."""
        up = ev.CardUp(CardId(name), ModelId("m"), "p", "full", True, 2, 2, 200, 200, 1000)
        self.tell(up._replace(**changes))

    def down(self, name: str = "c0") -> None:
        """Lose a card."""
        self.tell(ev.CardDown(CardId(name), "test"))

    def drain(self, name: str = "c0", *, on: bool = True) -> None:
        """Take a card out, or back in."""
        self.tell(ev.CardDraining(CardId(name), on))

    # -- turns

    def arrive(self, turn: str, session: str = "", **changes: Any) -> None:
        """A call of 20 prompt tokens and 10 output tokens; its own session unless named."""
        event = ev.TurnArrived(
            TurnId(turn), SessionId(session or f"s-{turn}"), BranchId(0), -1, TenantId("t"), 1,
            ModelId("m"), 20, 0, 0, False, True,
        )  # fmt: skip
        self.tell(event._replace(**changes))

    def end(self, turn: str, *, attempt: int = 1, status: str = "stop", **changes: Any) -> None:
        """The engine ends a turn: 20 prompt tokens, 10 out, all 30 kept."""
        event = ev.TurnEnded(TurnId(turn), attempt, status, 20, 0, 10, 30, "", True)
        self.tell(event._replace(**changes), after_ns=SECOND_NS)

    def fail(self, turn: str, *, attempt: int = 1, out: int = 0, retryable: bool = True) -> None:
        """The engine gives a turn up."""
        self.tell(ev.DispatchFailed(TurnId(turn), attempt, "engine_error", retryable, out))

    def cancel(self, turn: str, reason: str = "client_cancelled") -> None:
        """The client is gone."""
        self.tell(ev.TurnCancelled(TurnId(turn), reason))

    def close(self, session: str) -> None:
        """The client closes its session."""
        self.tell(ev.SessionClosed(SessionId(session), "client"))

    def timer(self, after_ns: int) -> None:
        """Time passes and the timer fires."""
        self.tell(ev.TimerFired(), after_ns=after_ns)

    # -- KV

    def stored(self, order: act.StoreKv, *, tokens: int = 30) -> None:
        """The pool has it."""
        self.tell(ev.KvStored(order.card, order.slot, order.entry, tokens, tokens * 1000))

    def loaded(self, order: act.LoadKv, *, tokens: int = 30) -> None:
        """The slot has it."""
        self.tell(ev.KvLoaded(order.card, order.slot, order.entry, tokens))

    def dropped(self, order: act.DropKv) -> None:
        """The slot is empty."""
        self.tell(ev.KvDropped(order.card, order.slot))

    def lost(self, op: str, order: act.StoreKv | act.LoadKv | act.DropKv) -> None:
        """A move failed."""
        entry = EntryId(-1) if isinstance(order, act.DropKv) else order.entry
        self.tell(ev.KvFailed(op, order.card, order.slot, entry, "pool_error"))

    def keep(self, turn: str, session: str = "", **changes: Any) -> EntryId:
        """Run one turn to its end and store it; returns the pool entry."""
        self.arrive(turn, session, **changes)
        self.end(turn)
        order = self.one(act.StoreKv)
        self.stored(order)
        return order.entry


def slot(number: int) -> SlotId:
    """Name a slot."""
    return SlotId(number)
