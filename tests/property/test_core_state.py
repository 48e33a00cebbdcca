"""Hypothesis plays clients, cards and pool against the core, one event at a time.

The naive model is the observer's book of `tests.sim`: it knows slots, KV and entries from events
and actions alone. After every event the core's ledger must agree with it, every numbered invariant
must hold, and every check of the simulation applies. Examples are fixed in CI and short.
"""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from bedplate.core import actions as act
from bedplate.core import events as ev
from bedplate.core import invariants, view
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
from tests.sim import checks_kv, checks_turns
from tests.sim.checkers import Checkers
from tests.sim.sequence import length, usable

BLOCK = 4
LANE = LanePolicy(1000, 5, 30 * SECOND_NS, 6, 2 * SECOND_NS, MINUTE_NS)
POLICY = Policy(
    block_tokens=BLOCK,
    lanes=(LANE, LANE._replace(lease_ns=0), LANE._replace(admit_permille=500)),
    tenants=(TenantPolicy(TenantId("t0"), 2, 4, 0, 0, 0, 60),),
    default_tenant=TenantPolicy(TenantId(""), 0, 0, 0, 0, 0, 0),
    pool_bytes_max=120,
    water_permille=(500,),
    run_base_ns=10 * SECOND_NS,
    run_token_ns=SECOND_NS,
    sessions_max=8,
)
CARDS = (
    ev.CardUp(CardId("full"), ModelId("m"), "p", "full", True, 3, 2, 80, 60, 1),
    ev.CardUp(CardId("window"), ModelId("m"), "p", "full", False, 2, 2, 60, 60, 1),
    ev.CardUp(CardId("hints"), ModelId("m"), "p", "hints", True, 2, 2, 40, 40, 1),
)
CHECKS = (
    checks_kv.CardRoom,
    checks_kv.SlotOrder,
    checks_kv.Prefix,
    checks_kv.Tenants,
    checks_kv.PoolCap,
    checks_turns.OneEnd,
    checks_turns.Attempts,
    checks_turns.Limits,
    checks_turns.Metering,
    checks_turns.Sessions,
)


class CoreMachine(RuleBasedStateMachine):
    """The core, and everything that may happen to it."""

    def __init__(self) -> None:
        super().__init__()
        self.base = Base()
        self.now = 1_000 * SECOND_NS
        self.checkers = Checkers(CHECKS)
        self.book = self.checkers.book
        self.moves: list[act.StoreKv | act.LoadKv | act.DropKv | act.DropEntry] = []
        self.turns = 0
        self.tell(ev.PolicyChanged(POLICY))
        for card in CARDS:
            self.tell(card)

    def tell(self, event: ev.Event) -> None:
        """Hand in an event and keep the moves that it asked for."""
        actions = self.base.handle(self.now, event)
        self.checkers.step(self.now, event, actions)
        moves = (act.StoreKv, act.LoadKv, act.DropKv, act.DropEntry)
        self.moves += [action for action in actions if isinstance(action, moves)]

    # -- clients

    @rule(
        session=st.integers(0, 3),
        fresh=st.integers(1, 30),
        cut=st.sampled_from([0, 0, 0, 3]),
        fork=st.booleans(),
        limit=st.sampled_from([0, 1, 9]),
        lane=st.integers(0, 2),
        resumable=st.booleans(),
    )
    def arrive(
        self,
        *,
        session: int,
        fresh: int,
        cut: int,
        fork: bool,
        limit: int,
        lane: int,
        resumable: bool,
    ) -> None:
        name = SessionId(f"s{session}")
        known = self.book.sessions.get(name)
        if known is not None and known.closed and known.alive:
            return
        computed = known.branches if known is not None and known.alive else {}
        branch, fork_of = 0, -1
        if fork and 0 in computed:
            branch, fork_of = 1 + self.turns, 0
        reuse = max(0, length(computed.get(0, ())) - cut)
        self.turns += 1
        self.tell(
            ev.TurnArrived(
                turn=TurnId(f"{name}.{self.turns}"),
                session=name,
                branch=BranchId(branch),
                fork_of=fork_of,
                tenant=TenantId(f"t{session % 2}"),
                lane=lane,
                model=ModelId("m"),
                prompt_tokens=reuse + fresh,
                reuse_tokens=reuse,
                limit_tokens=limit,
                resumable=resumable,
                exact=True,
            )
        )

    @precondition(lambda self: self.book.open)
    @rule(pick=st.integers(0, 50), reason=st.sampled_from(["client_cancelled", "deadline"]))
    def cancel(self, pick: int, reason: str) -> None:
        names = list(self.book.open)
        self.tell(ev.TurnCancelled(TurnId(names[pick % len(names)]), reason))

    @rule(session=st.integers(0, 3))
    def close(self, session: int) -> None:
        self.tell(ev.SessionClosed(SessionId(f"s{session}"), "client"))

    @rule(seconds=st.sampled_from([0, 1, 3, 40, 100]))
    def time_passes(self, seconds: int) -> None:
        self.now += seconds * SECOND_NS
        self.tell(ev.TimerFired())

    # -- engines

    def running(self) -> list[str]:
        """Turns on cards."""
        return [slot.turn for card in self.book.cards.values() for slot in card.slots if slot.turn]

    @precondition(lambda self: self.running())
    @rule(pick=st.integers(0, 50), out=st.integers(1, 9), lost=st.integers(0, 9))
    def turn_goes_on(self, pick: int, out: int, lost: int) -> None:
        """Ends well, mostly; reports progress or fails sometimes."""
        names = self.running()
        turn = self.book.turns[names[pick % len(names)]]
        name, attempt = TurnId(turn.arrived.turn), turn.attempts
        out = min(max(out, turn.delivered), turn.limit)
        if lost == 0:
            self.tell(ev.DispatchFailed(name, attempt, "engine_error", True, turn.delivered))
        elif lost == 1:
            self.tell(ev.TokensEmitted(name, attempt, out))
        elif lost == 2 and turn.stopping:
            self.tell(self._end(turn, "cancelled", turn.delivered, 0))
        else:
            status = "length" if out == turn.limit else "stop"
            self.tell(self._end(turn, status, out, turn.arrived.prompt_tokens + out - lost % 2))

    def _end(self, turn: object, status: str, out: int, kept: int) -> ev.TurnEnded:
        found = self.book.turns[turn.arrived.turn]  # type: ignore[attr-defined]
        card = self.book.cards[found.card]
        held = card.slots[found.slot].tokens
        cached = usable(held, found.prompt, can_cut=card.up.can_cut)
        prompt = found.arrived.prompt_tokens
        return ev.TurnEnded(
            TurnId(found.arrived.turn), found.attempts, status, prompt, cached, out, kept, "", True
        )

    # -- KV

    @precondition(lambda self: self.moves)
    @rule(pick=st.integers(0, 50), works=st.sampled_from([True, True, True, True, False]))
    def move_ends(self, pick: int, works: bool) -> None:
        order = self.moves.pop(pick % len(self.moves))
        if isinstance(order, act.DropEntry):
            self.tell(
                ev.EntryDropped(order.entry) if works else self._failed("drop_entry", order.entry)
            )
            return
        slot = self.book.slot_of(order.card, order.slot)
        kind = {act.StoreKv: "store", act.LoadKv: "load", act.DropKv: "drop"}[type(order)]
        entry = EntryId(-1) if isinstance(order, act.DropKv) else order.entry
        if slot is None or slot.op != kind:
            return  # the card was lost meanwhile: its answers are lost with it
        if not works:
            self.tell(ev.KvFailed(kind, order.card, order.slot, entry, "pool_error"))
        elif isinstance(order, act.StoreKv):
            tokens = length(slot.tokens)
            self.tell(ev.KvStored(order.card, order.slot, entry, tokens, tokens))
        elif isinstance(order, act.LoadKv):
            tokens = length(self.book.entries[entry].tokens)
            self.tell(ev.KvLoaded(order.card, order.slot, entry, tokens))
        else:
            self.tell(ev.KvDropped(order.card, order.slot))

    def _failed(self, op: str, entry: EntryId) -> ev.KvFailed:
        return ev.KvFailed(op, CardId(""), SlotId(-1), entry, "pool_error")

    # -- cards

    @rule(pick=st.integers(0, 2), kind=st.sampled_from(["down", "up", "drain", "back"]))
    def card_changes(self, pick: int, kind: str) -> None:
        up = CARDS[pick]
        if kind == "down":
            self._lose(up.card)
            self.tell(ev.CardDown(up.card, "test"))
            self._answer_lost_stores()
        elif kind == "up" and not self.book.cards[up.card].alive:
            self.tell(up)
        elif kind in ("drain", "back"):
            self.tell(ev.CardDraining(up.card, kind == "drain"))

    def _lose(self, card: CardId) -> None:
        gone = [m for m in self.moves if not isinstance(m, act.DropEntry) and m.card == card]
        self.lost = [move for move in gone if isinstance(move, act.StoreKv)]
        self.moves = [move for move in self.moves if move not in gone]

    def _answer_lost_stores(self) -> None:
        for order in self.lost:
            self.tell(ev.KvFailed("store", order.card, order.slot, order.entry, "engine_lost"))

    # -- what must hold

    @invariant()
    def every_numbered_invariant_holds(self) -> None:
        invariants.check(self.base)

    @invariant()
    def pool_ledger_agrees_with_the_book(self) -> None:
        assert view.pool(self.base).used_bytes == self.book.pool_bytes()

    @invariant()
    def card_ledger_covers_what_cards_hold(self) -> None:
        for card in view.cards(self.base):
            seen = self.book.cards[card.card]
            if not seen.alive:
                assert not card.up
                continue
            blocks = [-(-self.book.held_tokens(seen, slot) // BLOCK) for slot in seen.slots]
            assert card.kv_used_tokens >= BLOCK * sum(blocks)
            assert card.kv_used_tokens <= card.kv_total_tokens == seen.up.kv_tokens
            assert card.running >= sum(1 for _ in seen.running())

    @invariant()
    def every_open_turn_is_known_and_says_why_it_waits(self) -> None:
        for name, turn in self.book.open.items():
            words = view.why(self.base, TurnId(name))
            assert words != view.why(self.base, TurnId("nobody"))
            assert words.startswith("running:") == turn.running


CoreMachine.TestCase.settings = settings(
    max_examples=40, stateful_step_count=50, deadline=None, derandomize=True, print_blob=True
)
TestCoreMachine: Callable[..., object] = CoreMachine.TestCase
