"""All state of one supernode, and the few things every module of the core does to it."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Final

from bedplate.core.actions import Action, SetTimer
from bedplate.core.group import Group
from bedplate.core.ids import CardId, EntryId, ModelId, SessionId, SlotId, TenantId, TurnId
from bedplate.core.limits import EXPIRE_SCAN_MAX, Policy, TenantPolicy, default_policy
from bedplate.core.rules import Rules
from bedplate.core.states import (
    BREAKER_OPEN,
    RUNNING,
    WAITING,
    Card,
    Entry,
    Session,
    Slot,
    Tenant,
    Turn,
)
from bedplate.core.tools import SHARED_NAMES_MAX, Gaps, Memory

HEAP_SLACK: Final = 64
"""Stale deadlines kept before the heap is swept."""


class State:
    """What `Base.handle` changes. One object per supernode; nothing outside core holds it.

    `tools` and `gaps` are how long tools took, over all tenants.
    """

    __slots__ = (
        "actions",
        "armed_ns",
        "calendars",
        "calls",
        "cards",
        "closing",
        "counters",
        "deadlines",
        "entries",
        "gaps",
        "groups",
        "journal_stalled",
        "loose",
        "lru",
        "moved",
        "next_entry",
        "next_serial",
        "now_ns",
        "pending_stores",
        "policy",
        "pool_bytes",
        "pool_dropping",
        "pool_level",
        "retry_owed",
        "rules",
        "sessions",
        "shutting_down",
        "stirred",
        "tenants",
        "tools",
        "touched",
        "turns",
    )

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.policy: Policy = default_policy()
        self.now_ns = 0
        self.tenants: dict[TenantId, Tenant] = {}
        self.sessions: dict[SessionId, Session] = {}
        self.closing: dict[SessionId, Session] = {}
        self.turns: dict[TurnId, Turn] = {}
        self.cards: dict[CardId, Card] = {}
        self.groups: dict[ModelId, Group] = {}
        self.entries: dict[EntryId, Entry] = {}
        self.lru: list[dict[EntryId, Entry]] = [{}, {}, {}]
        self.gaps = Gaps()
        self.tools = Memory(SHARED_NAMES_MAX)
        self.pool_bytes = 0
        self.pool_dropping = 0
        self.pending_stores: dict[tuple[CardId, SlotId], Slot] = {}
        self.pool_level = 0
        self.retry_owed = 0
        self.calls: dict[TurnId, tuple[str, int, str, int, int]] = {}
        self.calendars: dict[str, tuple[int, int, int, int]] = {}
        self.deadlines: list[tuple[int, int, str, str]] = []
        self.armed_ns = 0
        self.next_entry = 1
        self.next_serial = 1
        self.journal_stalled = False
        self.shutting_down = False
        self.counters: dict[str, int] = {}
        # Per step, empty between steps.
        self.actions: list[Action] = []
        self.moved: dict[TenantId, Tenant] = {}
        self.touched: dict[CardId, Card] = {}
        self.stirred: dict[ModelId, Group] = {}
        self.loose: list[Slot] = []

    def emit(self, action: Action) -> None:
        """Append one action of this step."""
        self.actions.append(action)

    def count(self, name: str, by: int = 1) -> None:
        """Add to a counter that metrics read; counters never decide."""
        self.counters[name] = self.counters.get(name, 0) + by

    def stir(self, group: Group) -> None:
        """Note that admission or release of this group may find something to do in this step."""
        self.stirred[group.model] = group

    def serial(self) -> int:
        """Return the next number of the arrival order."""
        self.next_serial += 1
        return self.next_serial - 1

    def tenant(self, tenant: TenantId) -> Tenant:
        """Return the tenant's record, made with its configured limits on first sight."""
        found = self.tenants.get(tenant)
        if found is None:
            found = Tenant(tenant, self.tenant_policy(tenant), self.now_ns)
            self.tenants[tenant] = found
        return found

    def tenant_policy(self, tenant: TenantId) -> TenantPolicy:
        """Return the configured limits of a tenant, or the default ones. Cost: O(tenants)."""
        for policy in self.policy.tenants:
            if policy.tenant == tenant:
                return policy
        return self.policy.default_tenant

    def push_deadline(self, at_ns: int, kind: str, subject: str) -> None:
        """Note that `kind` must be looked at for `subject` at `at_ns`; stale ones do no harm."""
        assert at_ns >= self.now_ns, (kind, subject)
        heapq.heappush(self.deadlines, (at_ns, self.serial(), kind, subject))

    def fire_deadlines(self, act: Callable[[State, str, str], None]) -> None:
        """Hand every deadline that is due to `act`, in time order, a bounded number a step."""
        for _ in range(EXPIRE_SCAN_MAX):
            if not self.deadlines or self.deadlines[0][0] > self.now_ns:
                return
            _, _, kind, subject = heapq.heappop(self.deadlines)
            act(self, kind, subject)

    def arm_timer(self) -> None:
        """Ask for a timer when the earliest deadline is sooner than the armed one (INV-09).

        Deadlines that lapsed are no reason to wake: most turns end long before theirs. Cost:
        amortised O(log heap).
        """
        deadlines = self.deadlines
        while deadlines and self._lapsed(deadlines[0][2], deadlines[0][3]):
            heapq.heappop(deadlines)
        subjects = len(self.sessions) + len(self.turns) + len(self.entries)
        if len(deadlines) > HEAP_SLACK + 4 * subjects:
            deadlines = self._sweep_deadlines()
        if not deadlines:
            return
        due_ns = deadlines[0][0]
        if self.armed_ns == 0 or due_ns < self.armed_ns:
            due_ns = max(due_ns, self.now_ns)
            self.armed_ns = due_ns
            self.emit(SetTimer(due_ns))

    def _lapsed(self, kind: str, subject: str) -> bool:
        """Tell whether nothing would happen at a deadline; who comes to need one pushes another."""
        if kind == "idle":
            return subject not in self.sessions
        if kind == "prefix":
            return EntryId(int(subject)) not in self.entries
        if kind in ("admit", "slice"):
            return False
        if kind == "breaker":
            return self.cards[CardId(subject)].breaker != BREAKER_OPEN
        turn = self.turns.get(TurnId(subject))
        if turn is None:
            return True
        return turn.state != RUNNING if kind == "run" else turn.state not in WAITING

    def _sweep_deadlines(self) -> list[tuple[int, int, str, str]]:
        """Drop deadlines that lapsed, and doubles.

        Cost: O(heap), amortised O(1).
        """
        kept = []
        seen: dict[tuple[str, str], bool] = {}
        for item in sorted(self.deadlines):
            _, _, kind, subject = item
            if (kind, subject) not in seen and not self._lapsed(kind, subject):
                seen[(kind, subject)] = True
                kept.append(item)
        self.deadlines = kept
        return kept
