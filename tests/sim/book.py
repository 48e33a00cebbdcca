"""What an observer knows: slots, KV, pool entries and turns, from events and actions alone.

The book never asks the core. It is the physics: what a card holds after the answers so far.
`hear` takes an event in, `see` takes one action in; the checkers look at the book before each.
A turn that the client no longer waits for may still run: `Turn.over` is the client's side,
`Slot.turn` the card's.

Length: one small method stands for each event and each action, all over one state.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from bedplate.core import actions as act
from bedplate.core import events as ev
from bedplate.core.limits import Policy, TenantPolicy
from bedplate.core.units import SECOND_NS
from tests.sim.sequence import Sequence, cut, extend, length, opening
from tests.sim.things import Card, Slot

JUMP_NS = 30 * SECOND_NS
"""A silence this long counts as a fault: waits across it prove nothing."""
MOVE_NS = 2 * SECOND_NS
"""So does one during which KV was on the move: a move takes less."""
GOOD_ENDS = ("stop", "length", "tool_calls")


@dataclass(slots=True)
class Turn:
    """One call, from its arrival on."""

    arrived: ev.TurnArrived
    at_ns: int
    prompt: Sequence
    alone: bool = True
    """No other turn of its branch was open when it arrived."""
    wanted: int = 0
    """Output limit of its client, else of its lane as it was at the arrival."""
    gap_ns: int = 0
    """Then: since the end of the branch's last turn, 0 for its first."""
    accepted: bool = False
    over: bool = False
    running: bool = False
    computing: bool = False
    """It runs, and its first token is not out."""
    cancelled: bool = False
    stopping: bool = False
    """CancelTurn was sent for the attempt that runs."""
    attempts: int = 0
    yielding: bool = False
    """The attempt that runs was asked to yield."""
    yielded: int = 0
    """Attempts that did."""
    told_then: ev.TurnEnded | None = None
    """What the last of them said."""
    delivered: int = 0
    limit: int = 0
    card: str = ""
    failed_on: set[str] = field(default_factory=set)
    """Cards that gave it up."""
    slot: int = -1
    waiting_since_ns: int = 0
    first_dispatch_ns: int = -1
    last_dispatch_ns: int = -1
    ended: ev.TurnEnded | None = None
    settled: int = 0
    timed_out: bool = False
    """It was stopped for its run's deadline."""
    told: int = 0
    """Refuse and FailTurn actions for it."""

    @property
    def waiting(self) -> bool:
        """Accepted, not on a card, not over."""
        return self.accepted and not self.over and not self.running

    @property
    def need(self) -> int:
        """Tokens it may grow to; before its limit is known, with the client's limit or 1."""
        return self.arrived.prompt_tokens + (self.limit or max(1, self.arrived.limit_tokens))


@dataclass(slots=True)
class Entry:
    """One pool entry."""

    tenant: str
    session: str
    branch: int
    model: str
    tokens: Sequence
    size: int
    stored: bool = False
    dropping: bool = False
    drops_failed: int = 0
    since_ns: int = 0
    prefix: str = ""  # a tenant's opening has a name, and no session
    replaced: bool = False
    """Its branch has a newer copy: only forks that start from it keep it."""


@dataclass(slots=True)
class Session:
    """One session: what each branch has computed, and whether the core still knows it."""

    tenant: str
    branches: dict[int, Sequence] = field(default_factory=dict)
    asked: dict[int, int] = field(default_factory=dict)
    """Most tokens that a turn of each branch asked for: prompt and limit."""
    cut: set[int] = field(default_factory=set)
    """Branches of which some turn did not extend all that was computed."""
    alive: bool = True
    closed: bool = False
    accepted: bool = False
    """Some turn of it was accepted: the core knows it."""
    served: bool = False
    """Some turn of it was dispatched: it was admitted at that moment."""
    lane: int = 0
    """Of its last accepted turn."""
    open_turns: int = 0
    """Accepted and not settled."""
    ended_ns: dict[int, int] = field(default_factory=dict)
    """When the last turn of each branch ended."""
    lease_ns: int = 0
    """Until when its KV is under a lease at most: the lane's time from the end of its last turn."""
    expires_ns: int = 0
    """When it ends if it stays silent: the lane's time from its opening or its last end."""


def snake(kind: type) -> str:
    """Return a class name as the methods that handle it are called."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower()


class Book:
    """All of it."""

    def __init__(self) -> None:
        self.now = 0
        self.policy: Policy | None = None
        self.turns: dict[str, Turn] = {}
        self.open: dict[str, Turn] = {}
        """Turns that were accepted and are not over."""
        self.sessions: dict[str, Session] = {}
        self.cards: dict[str, Card] = {}
        self.entries: dict[int, Entry] = {}
        self.entry_last = -1
        self.timer_ns: int | None = None
        self.last_fault_ns = 0
        self.policy_ns = 0
        """When the policy last changed."""
        self.stalled = False
        self.shutdown = False
        self.created = 0
        self.ended = 0

    # -- reading

    def tenant_policy(self, tenant: str) -> TenantPolicy:
        """Return the limits that hold for a tenant now."""
        assert self.policy is not None
        for found in self.policy.tenants:
            if found.tenant == tenant:
                return found
        return self.policy.default_tenant

    def limit_of(self, turn: Turn) -> int:
        """Return the output limit in force, or the most it can be."""
        return turn.limit or turn.wanted

    def held_tokens(self, card: Card, slot: Slot) -> int:
        """Return the KV tokens that a slot takes or may come to take, as things stand.

        What a turn does not reuse of its own slot is there until its card says that the turn ended.
        """
        if slot.turn:
            before = slot.before_tokens if card.up.kv == "full" else 0
            return max(self.turns[slot.turn].need, before)
        if card.up.kv != "full":
            return 0
        if slot.op == "load":
            return length(self.entries[slot.entry].tokens)
        return max(length(slot.tokens), slot.remains_tokens)

    def pool_bytes(self, tenant: str | None = None) -> int:
        """Return bytes in the pool and on their way into it, of all or of one tenant."""
        return sum(e.size for e in self.entries.values() if tenant in (None, e.tenant))

    def placed_most(self) -> int:
        """Return how many turns may have their place on a card and wait for its moves.

        A load is one turn's. Several may wait for the room that one drop makes, as many as may run
        beside those that do.
        """
        total = 0
        for card in self.cards.values():
            ops = [slot.op for slot in card.slots]
            free = card.up.running_max - sum(1 for _ in card.running())
            total += free if "drop" in ops else ops.count("load")
        return total

    def is_new(self, session: str) -> bool:
        """Tell whether a call of this session would open it."""
        known = self.sessions.get(session)
        return known is None or not (known.alive and known.accepted)

    def storing(self) -> set[str]:
        """Return the sessions that have KV on its way to the pool."""
        slots = (slot for card in self.cards.values() for slot in card.slots)
        return {slot.session for slot in slots if slot.op == "store"}

    def slot_of(self, card: str, slot: int) -> Slot | None:
        """Return a slot of a living card, or None."""
        found = self.cards.get(card)
        if found is None or not found.alive or not 0 <= slot < len(found.slots):
            return None
        return found.slots[slot]

    def live_turns(self) -> Iterator[Turn]:
        """Turns that were accepted and are not over."""
        return iter(self.open.values())

    def accept(self, name: str) -> None:
        """The step of a turn's arrival is over: it was accepted unless it was refused in it."""
        turn = self.turns[name]
        turn.accepted = turn.told == 0
        if turn.accepted:
            session, first = self.sessions[turn.arrived.session], turn.arrived
            assert self.policy is not None
            session.lane = first.lane
            if not session.accepted:
                session.expires_ns = self.now + self.policy.lanes[first.lane].idle_max_ns
            session.accepted = True
            session.open_turns += 1 - turn.settled
            need = first.prompt_tokens + self.limit_of(turn)
            session.asked[first.branch] = max(need, session.asked.get(first.branch, 0))
        if turn.accepted and not turn.over:
            self.open[name] = turn

    def limit_for(self, event: ev.TurnArrived) -> int:
        """The output limit in force: the client's or the lane's, as far as the context goes."""
        assert self.policy is not None
        wanted = event.limit_tokens or self.policy.lanes[event.lane].output_tokens
        alive = [card.up for card in self.cards.values() if card.alive]
        longest = max((up.context_tokens for up in alive if up.model == event.model), default=0)
        own = self.context_of(event.tenant)
        return min(wanted, (min(own, longest) if own else longest) - event.prompt_tokens)

    def context_of(self, tenant: str) -> int:
        """The longest context that a tenant's limits allow, 0 for any."""
        assert self.policy is not None
        policy, block = self.tenant_policy(tenant), self.policy.block_tokens
        on_cards = policy.card_tokens_max // block * block
        if policy.session_tokens_max and policy.card_tokens_max:
            return min(policy.session_tokens_max, on_cards)
        return policy.session_tokens_max or on_cards

    # -- events

    def hear(self, now: int, event: ev.Event) -> None:
        """Take an event in."""
        gap = now - self.now
        if gap > JUMP_NS or (gap > MOVE_NS and self._moving()):
            self.last_fault_ns = now
        self.now = now
        handler = getattr(self, f"heard_{snake(type(event))}", None)
        if handler is not None:
            handler(event)

    def _moving(self) -> bool:
        return any(slot.op for card in self.cards.values() for slot in card.slots)

    def heard_policy_changed(self, event: ev.PolicyChanged) -> None:
        self.policy = event.policy
        self.shutdown = False
        self.policy_ns = self.last_fault_ns = self.now

    def heard_journal_stalled(self, event: ev.JournalStalled) -> None:
        self.stalled = event.on

    def heard_shutdown_requested(self, event: ev.ShutdownRequested) -> None:
        self.shutdown = True

    def heard_timer_fired(self, event: ev.TimerFired) -> None:
        self.timer_ns = None

    def heard_turn_arrived(self, event: ev.TurnArrived) -> None:
        assert self.policy is not None
        session = self.sessions.get(event.session)
        if session is None or not session.alive:
            session = Session(tenant=event.tenant)
            self.sessions[event.session] = session
        source = event.fork_of if event.fork_of >= 0 else event.branch
        computed = session.branches.get(source, ())
        prompt = cut(computed, event.reuse_tokens)
        if length(prompt) < length(computed):
            session.cut.add(event.branch)
        if event.prefix:
            prompt = opening(event.tenant, event.model, event.prefix, event.prefix_tokens)
        fresh = event.prompt_tokens - length(prompt)
        key = (event.session, event.branch)
        ended_ns = session.ended_ns.get(event.branch, self.now)
        self.turns[event.turn] = Turn(
            arrived=event,
            at_ns=self.now,
            prompt=extend(prompt, f"{event.turn}?", fresh),
            waiting_since_ns=self.now,
            wanted=event.limit_tokens or self.policy.lanes[event.lane].output_tokens,
            gap_ns=self.now - ended_ns,
            alone=not any((t.arrived.session, t.arrived.branch) == key for t in self.live_turns()),
        )

    def computing(self, card: Card) -> int:
        """Return how many prompts the card computes."""
        return sum(1 for slot in card.running() if self.turns[slot.turn].computing)

    def current(self, turn: str, attempt: int) -> Turn | None:
        """Return the turn if this attempt of it runs now; other events are stale."""
        found = self.turns.get(turn)
        if found is None or not found.running or found.attempts != attempt:
            return None
        return found

    def heard_turn_started(self, event: ev.TurnStarted) -> None:
        turn = self.current(event.turn, event.attempt)
        if turn is not None:
            turn.computing = False

    def heard_tokens_emitted(self, event: ev.TokensEmitted) -> None:
        turn = self.current(event.turn, event.attempt)
        if turn is not None:
            turn.delivered = max(turn.delivered, event.out_tokens)

    def heard_turn_ended(self, event: ev.TurnEnded) -> None:
        turn = self.current(event.turn, event.attempt)
        if turn is None:
            return
        if event.status == "yielded":
            turn.yielded += 1
            turn.told_then = event
        else:
            turn.ended = event
        turn.delivered = event.out_tokens
        card = self.cards[turn.card]
        late = turn.timed_out and event.status != "held" and not self.stalled
        if event.status in GOOD_ENDS:
            card.works()
        elif event.status == "error" or late:
            card.strike(self.now, silent=turn.timed_out and turn.computing)
        self._off_card(turn)
        computed = extend(turn.prompt, f"{event.turn}!", event.out_tokens)
        computed = cut(computed, event.kv_tokens)
        if event.status in GOOD_ENDS:
            session = self.sessions[turn.arrived.session]
            session.branches[turn.arrived.branch] = computed
        slot = self.slot_of(turn.card, turn.slot)
        if slot is not None:
            slot.clean = False
            slot.kept = event.status in GOOD_ENDS and not turn.stopping
            if event.kv_tokens and event.status not in ("error", "lost"):
                slot.tokens, slot.known, slot.remains_tokens = computed, True, 0
            else:
                slot.tokens, slot.known, slot.remains_tokens = (), False, turn.need

    def heard_dispatch_failed(self, event: ev.DispatchFailed) -> None:
        turn = self.current(event.turn, event.attempt)
        if turn is None:
            return
        turn.delivered = max(turn.delivered, event.out_tokens)
        self.last_fault_ns = self.now
        turn.failed_on.add(turn.card)
        if event.code.startswith("engine_"):
            silent = event.code == "engine_timeout" and turn.computing
            self.cards[turn.card].strike(self.now, silent=silent)
        self._off_card(turn)
        slot = self.slot_of(turn.card, turn.slot)
        if slot is not None:
            slot.tokens, slot.known, slot.remains_tokens = (), False, turn.need

    def _off_card(self, turn: Turn) -> None:
        slot = self.slot_of(turn.card, turn.slot)
        if slot is not None:
            slot.turn, slot.before_tokens, slot.idle_since_ns = "", 0, self.now
        turn.running, turn.waiting_since_ns = False, self.now

    def heard_turn_cancelled(self, event: ev.TurnCancelled) -> None:
        if event.turn in self.turns:
            self.turns[event.turn].cancelled = True

    def heard_session_closed(self, event: ev.SessionClosed) -> None:
        if event.session in self.sessions:
            self.sessions[event.session].closed = True

    def heard_kv_stored(self, event: ev.KvStored) -> None:
        entry = self.entries.get(event.entry)
        if entry is not None and not entry.stored:
            entry.stored, entry.size = True, event.size_bytes
        slot = self.slot_of(event.card, event.slot)
        if slot is not None and slot.op == "store" and slot.entry == event.entry:
            slot.op, slot.entry, slot.clean, slot.copy = "", -1, True, event.entry
            for number, older in self.entries.items():
                same = (older.session, older.branch) == (slot.session, slot.branch)
                older.replaced = older.replaced or (same and number < event.entry)

    def heard_kv_loaded(self, event: ev.KvLoaded) -> None:
        slot = self.slot_of(event.card, event.slot)
        if slot is not None and slot.op == "load" and slot.entry == event.entry:
            slot.tokens, slot.known = self.entries[event.entry].tokens, True
            slot.op, slot.entry, slot.loaded, slot.clean = "", -1, True, True
            slot.kept, slot.copy = True, event.entry
            slot.idle_since_ns = self.now

    def heard_kv_dropped(self, event: ev.KvDropped) -> None:
        slot = self.slot_of(event.card, event.slot)
        if slot is not None and slot.op == "drop":
            slot.clear(self.now)

    def heard_entry_dropped(self, event: ev.EntryDropped) -> None:
        entry = self.entries.get(event.entry)
        if entry is not None and entry.dropping:
            del self.entries[event.entry]

    def heard_kv_failed(self, event: ev.KvFailed) -> None:
        self.last_fault_ns = self.now
        if event.op == "drop_entry":
            entry = self.entries.get(event.entry)
            if entry is not None:
                entry.dropping = False
                entry.drops_failed += 1
            return
        if event.op == "store":
            entry = self.entries.get(event.entry)
            if entry is not None and not entry.stored and not entry.dropping:
                del self.entries[event.entry]
        slot = self.slot_of(event.card, event.slot)
        if slot is None or slot.op != event.op:
            return
        if event.op == "load":
            if slot.entry == event.entry:
                slot.clear(self.now)
        elif event.op == "drop":
            slot.op = ""
            slot.drops_failed += 1
        elif slot.entry == event.entry:
            slot.op, slot.entry = "", -1

    def heard_card_up(self, event: ev.CardUp) -> None:
        self._empty_card(event.card)
        self.last_fault_ns = self.now
        before = self.cards.get(event.card)
        card = Card(up=event)
        if before is not None:
            card.draining, card.strikes = before.draining, before.strikes
            card.struck_ns, card.pauses = before.struck_ns, before.pauses
            card.open_until_ns = min(before.open_until_ns, self.now)
        card.slots = [Slot() for _ in range(event.slots)]
        self.cards[event.card] = card

    def heard_card_down(self, event: ev.CardDown) -> None:
        self.last_fault_ns = self.now
        self._empty_card(event.card)
        if event.card in self.cards:
            self.cards[event.card].alive = False

    def heard_card_draining(self, event: ev.CardDraining) -> None:
        self.last_fault_ns = self.now
        if event.card in self.cards:
            self.cards[event.card].draining = event.on

    def _empty_card(self, name: str) -> None:
        card = self.cards.get(name)
        if card is None or not card.alive:
            return
        for slot in card.slots:
            if slot.turn:
                self.turns[slot.turn].failed_on.add(name)
                self._off_card(self.turns[slot.turn])
            slot.clear(self.now)

    # -- actions

    def see(self, action: act.Action) -> None:
        """Take an action in."""
        handler = getattr(self, f"saw_{snake(type(action))}", None)
        if handler is not None:
            handler(action)

    def saw_dispatch(self, action: act.Dispatch) -> None:
        turn = self.turns[action.turn]
        turn.attempts, turn.limit, turn.running = action.attempt, action.limit_tokens, True
        turn.card, turn.slot, turn.stopping = action.card, action.slot, False
        turn.yielding = False
        turn.computing = True
        turn.last_dispatch_ns, turn.timed_out = self.now, False
        if turn.first_dispatch_ns < 0:
            turn.first_dispatch_ns = self.now
        session = self.sessions[action.session]
        session.served = True
        card = self.cards[action.card]
        slot = card.slots[action.slot]
        own = card.up.kv != "none" and (slot.session, slot.branch) == (
            action.session,
            action.branch,
        )
        slot.before_tokens = length(slot.tokens) if own else 0
        slot.turn, slot.session, slot.branch = action.turn, action.session, action.branch
        slot.tenant, slot.loaded, slot.clean = turn.arrived.tenant, False, False
        if action.prefix_tokens:
            tokens = cut(turn.prompt, action.prefix_tokens)
            entry = self._begin_entry(action.prefix_entry, card, slot.tenant, tokens)
            entry.prefix = turn.arrived.prefix

    def saw_cancel_turn(self, action: act.CancelTurn) -> None:
        turn = self.turns[action.turn]
        turn.stopping = True
        closed = self.sessions[turn.arrived.session].closed
        turn.timed_out = not turn.cancelled and not closed

    def saw_yield_turn(self, action: act.YieldTurn) -> None:
        self.turns[action.turn].yielding = True

    def saw_refuse(self, action: act.Refuse) -> None:
        self._over(action.turn)

    def saw_fail_turn(self, action: act.FailTurn) -> None:
        self._over(action.turn)

    def _over(self, name: str) -> None:
        turn = self.turns[name]
        turn.told += 1
        turn.over = True
        self.open.pop(name, None)

    def saw_settled(self, action: act.Settled) -> None:
        if action.turn:
            turn = self.turns[action.turn]
            turn.settled += 1
            turn.over = True
            self.open.pop(action.turn, None)
            session = self.sessions[action.session]
            assert self.policy is not None
            lane = self.policy.lanes[session.lane]
            session.ended_ns[action.branch] = self.now
            session.lease_ns = self.now + lane.lease_ns
            session.expires_ns = self.now + lane.idle_max_ns
            session.open_turns -= turn.accepted

    def saw_load_kv(self, action: act.LoadKv) -> None:
        slot = self.cards[action.card].slots[action.slot]
        slot.op, slot.entry = "load", action.entry
        slot.session, slot.branch = action.session, action.branch
        slot.tenant = self.entries[action.entry].tenant

    def saw_store_kv(self, action: act.StoreKv) -> None:
        card = self.cards[action.card]
        slot = card.slots[action.slot]
        slot.op, slot.entry = "store", action.entry
        entry = self._begin_entry(action.entry, card, action.tenant, slot.tokens)
        entry.session, entry.branch = action.session, action.branch

    def _begin_entry(self, number: int, card: Card, tenant: str, tokens: Sequence) -> Entry:
        self.entry_last = max(self.entry_last, number)
        size = length(tokens) * card.up.kv_bytes_per_token
        entry = Entry(tenant, "", -1, card.up.model, tokens, size, since_ns=self.now)
        return self.entries.setdefault(number, entry)

    def saw_drop_kv(self, action: act.DropKv) -> None:
        self.cards[action.card].slots[action.slot].op = "drop"

    def saw_drop_entry(self, action: act.DropEntry) -> None:
        self.entries[action.entry].dropping = True
        for card in self.cards.values():
            for slot in card.slots:
                slot.clean = slot.clean and slot.copy != action.entry

    def saw_set_timer(self, action: act.SetTimer) -> None:
        self.timer_ns = action.at_ns

    def saw_clear_timer(self, action: act.ClearTimer) -> None:
        self.timer_ns = None

    @property
    def full(self) -> bool:
        """There are as many sessions as may be."""
        alive = sum(1 for session in self.sessions.values() if session.alive and session.accepted)
        return self.policy is not None and alive >= self.policy.sessions_max

    def saw_session_ended(self, action: act.SessionEnded) -> None:
        self.ended += 1
        self.sessions[action.session].alive = False
